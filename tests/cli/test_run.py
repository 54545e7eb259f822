"""`tgflow run` end to end, and its status files during a run."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from helpers.fake_loggers import fake_tensorboard
from helpers.live_runs import SMALL, Killed, act_at, signal_at, write_features
from tgflow.base.extras import install_command
from tgflow.checkpoint import load
from tgflow.checkpoint.sections import Ids
from tgflow.graph.ids import NodeIds
from tgflow.report.callbacks import TensorBoard
from tgflow.run import monitoring as watch
from tgflow.run import records as files
from tgflow.run import runner
from tgflow.run.config import load_config
from tgflow.run.loggers import RunLogger
from tgflow.run.metrics import METRICS


def test_run_writes_all_documented_files_and_can_be_repeated(tgflow, events_csv, tmp_path):
    ran = tgflow("run", "-s", events_csv, "-o", "out", "--seed", 3, *SMALL)
    assert ran.code == 0
    out = tmp_path / "out"
    assert {p.name for p in out.iterdir()} == {
        "config.toml", "metrics.jsonl", "metrics.json", "report.html", "stream.json",
        "health.json", "run.log", "checkpoints", "log", "dead-letters", ".lock", "files.json",
    }  # fmt: skip
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [r["stop"] for r in records] == [50, 100, 150, 200, 250, 300, 350, 400]
    assert all(r["rss_bytes"] > 0 and 0 < r["progress"] <= 1 for r in records)
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["num_events"] == 400
    assert 0 < metrics["test.ap"] <= 1
    assert 0 < metrics["prequential.mrr"] <= 1
    assert metrics["events_per_second"] > 0
    for name in ("tgn+pairs, 400 events", "report.html", "AP", "MRR", "event-exact", "ties"):
        assert name in ran.out
    assert "events/s" in ran.err
    [path] = (out / "checkpoints").iterdir()
    checkpoint = load(path)
    ids = NodeIds()
    Ids(ids).load(checkpoint)
    assert sorted(ids.decode(checkpoint.sections["events"]["src"].unique())) == list(range(20))
    assert checkpoint.meta["model"]["name"] == "tgn+pairs"
    once, pipe = os.pipe()
    os.write(pipe, (out / "config.toml").read_bytes())
    os.close(pipe)
    again = tgflow("run", "--config", f"/dev/fd/{once}", "-o", "b", "--json")
    os.close(once)
    assert load_config(tmp_path / "out/config.toml") == load_config(tmp_path / "b/config.toml")
    assert again.json["state_sha256"] == metrics["state_sha256"]


def test_jumps_of_the_clock_change_no_result(tgflow, events_csv, monkeypatch):
    plain = ["run", "-s", events_csv, "--seed", 3, "--json", *SMALL, "-o"]
    expected = tgflow(*plain, "steady").json["state_sha256"]
    real, chance = time.time, random.Random(0)
    monkeypatch.setattr(time, "time", lambda: real() + chance.uniform(-1e7, 1e7))
    signal_at(monkeypatch, 200, signal.SIGTERM)
    assert tgflow(*plain, "jumps").json["num_events"] < 400
    assert tgflow("run", "--resume", "--json", "-o", "jumps").json["state_sha256"] == expected


def test_neighbors_are_sampled_as_configured(tgflow, events_csv):
    plain = ["-s", events_csv, "-m", "tgn", "--json", *SMALL]
    ran = tgflow("run", *plain, "--set", "learning.strategy=decayed", "--set", "learning.span=3600")
    assert ran.json["prequential.loss"] != tgflow("run", *plain).json["prequential.loss"]


def test_model_is_chosen_and_kept_on_resume(tgflow, events_csv, tmp_path):
    plain = ["-s", events_csv, "--json", *SMALL]
    pairs = tgflow("run", *plain, "--limit", 100)
    assert (pairs.json["model"], pairs.json["num_events"]) == ("tgn+pairs", 100)
    assert pairs.json["counts_bytes"] > 0
    ran = tgflow("run", "-m", "tgn", "--limit", 100, *plain)
    assert (ran.json["model"], "counts_bytes" in ran.json) == ("tgn", False)
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"made-tgn", "made-tgn-2"}
    ran = tgflow("run", "--resume", "--limit", 150, "--json", "-o", "runs/made-tgn-2")
    assert ran.json["model"] == "tgn"


OWN = """
import tgflow as tg


class Mine(tg.TGAT):
    def __init__(self, **settings):
        super().__init__(embedding_dim=8, time_dim=4, neighbors=2)


class Reciprocal:
    def update(self, positive, negative):
        self.ranks = tg.metrics.ranks(positive, negative)

    def compute(self):
        return float(self.ranks.reciprocal().mean())
"""
METRIC = ("--metric", "./own_parts.py:Reciprocal")


def test_run_accepts_a_user_defined_model_and_metric(tgflow, resume, events_csv, tmp_path):
    (tmp_path / "own_parts.py").write_text(OWN)
    own = ("-m", "./own_parts.py:Mine", *METRIC, "--batch-size", 200, "-o", "out")
    ran = tgflow("run", "-s", events_csv, *own, "--limit", 200)
    assert ran.code == 0, ran.err
    assert re.search(r"Reciprocal +0\.\d+ +0\.\d+", ran.out)
    assert "Reciprocal 0." in ran.err
    ran = resume("--limit", 400, "--json", "-m", tmp_path / "own_parts.py:Mine", *METRIC)
    assert ran.code == 0, ran.err
    assert ran.json["model"] == "own_parts:Mine"
    assert ran.json["prequential.Reciprocal"] == ran.json["prequential.mrr"]
    records = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").open()]
    assert len(records) == 2
    for record in records:
        assert record["metrics.Reciprocal"] == record["metrics.mrr"]
    assert (tmp_path / "out/report.html").read_text().count("Reciprocal") >= 2
    found = tgflow("info", "out", "--json").json
    assert found["own_metrics"] == ["Reciprocal"]
    for part in ("prequential", "test"):
        shown = f"{found['metrics'][f'{part}.Reciprocal']:.4f}"
        assert re.search(rf"{part}\.Reciprocal +{shown}", tgflow("info", "out").out)


def test_train_and_compare_show_a_user_defined_metric(tgflow, events_csv, tmp_path):
    (tmp_path / "own_parts.py").write_text(OWN)
    ran = tgflow("train", "-s", events_csv, *SMALL, *METRIC, "--epochs", 1, "-o", "trained")
    assert ran.code == 0, ran.err
    assert re.search(r"Reciprocal +0\.\d+ +0\.\d+", ran.out)
    ran = tgflow("compare", "-s", events_csv, "--models", "recency,poptrack", *METRIC, "-o", "all")
    assert ran.code == 0, ran.err
    assert "Reciprocal" in ran.out
    assert "<th>Reciprocal" in (tmp_path / "all/report.html").read_text()
    ran = tgflow("run", "-s", events_csv, "--metric", "./own_parts.py:Other")
    assert ran.code == 2
    assert "own_parts.py has no class 'Other'" in ran.err


@pytest.fixture
def seen(monkeypatch):
    """Return the status files after each micro-batch, by position."""
    found = {}
    record = runner.Runner._record

    def recording(self, step):
        record(self, step)
        page = look(Path("out"))
        late = time.monotonic() + 10  # checkpoints are written beside the steps
        while step.stop == 350 and "tgflow_checkpoint_position " not in page:
            assert time.monotonic() < late
            page = look(Path("out"))
        found[step.stop] = page

    monkeypatch.setattr(runner.Runner, "_record", recording)
    return found


def look(run):
    lines = (run / "run.log").read_text().splitlines()
    ports = [entry["port"] for line in lines if "port" in (entry := json.loads(line))]
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/metrics", timeout=10) as page:
        return page.read().decode()


def value(page, name):
    [line] = [line for line in page.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[-1])


def test_metrics_file_describes_the_run(tgflow, tmp_path, seen):
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    stream = write_features(tmp_path / "made.csv", 400)
    flags = ("--metrics-port", 0, "--checkpoint-batches", 2, "--memory-limit", "100GiB")
    disk = ("--features", "f*", "--edge-table", "disk", "--edge-cache", "4KiB")
    assert tgflow("run", "-s", stream, "-o", "out", *flags, *disk, *SMALL).code == 0
    page = seen[350]
    assert value(page, "tgflow_events_learned_total") == 350
    assert value(page, 'tgflow_events_accepted_total{partition="0"}') == 400
    assert value(page, 'tgflow_state{state="running"}') == 1
    assert 0 < value(page, 'tgflow_prequential{metric="ap"}') <= 1
    assert value(page, "tgflow_checkpoint_position") >= 100
    assert value(page, "tgflow_checkpoint_age_seconds") < 60
    assert value(page, "tgflow_log_bytes") > 400 * 24
    assert value(page, "tgflow_memory_limit_bytes") == 100 * 2**30
    assert value(page, 'tgflow_store_hit_ratio{tier="device"}') == 1
    assert 'tgflow_run_info{model="tgn+pairs"' in page
    assert value(page, 'tgflow_edge_rows{placement="disk"}') == 400
    for name in ("cache_hits_total", "cache_bytes", "memory_bytes"):
        assert value(page, f"tgflow_edge_{name}") > 0
    misses = value(page, "tgflow_edge_cache_misses_total")
    assert value(page, "tgflow_edge_cache_read_bytes_total") == 8 * misses > 0
    health = json.loads(Path("out/health.json").read_text())
    assert health["tables"]["edge_x"]["cache"]["hits"] > 0
    absent = {f"tgflow_{each.name}" for each in METRICS if f"\n{each.exported}" not in page}
    # only a topic has these, a GPU, ranks, labels that come later, or a stream with bad rows, or
    # not read to its end
    assert absent <= {
        "tgflow_gpu_memory_bytes", "tgflow_gpu_memory_peak_bytes",
        "tgflow_labels", "tgflow_labels_waiting", "tgflow_labels_delay_seconds",
        "tgflow_rank_compute_seconds", "tgflow_rank_wait_seconds", "tgflow_rank_memory_bytes",
        "tgflow_rank_sent_bytes", "tgflow_sent_bytes",
        "tgflow_events_malformed", "tgflow_source_lag_records", "tgflow_source_rebuilds",
        "tgflow_source_outage_seconds", "tgflow_source_paused_seconds",
        "tgflow_watermark_seconds", "tgflow_watermark_age_seconds", "tgflow_seconds_left",
    }  # fmt: skip


def test_stderr_can_be_only_json(tgflow, events_csv, monkeypatch):
    monkeypatch.setattr(watch, "SECONDS_PER_LINE", 0.0)
    ran = tgflow("run", "-s", events_csv, "-o", "out", "--log-format", "json", "--json", *SMALL)
    entries = [json.loads(line) for line in ran.err.splitlines()]
    assert [e["event"] for e in entries if e["event"] != "progress"] == [
        "ids",
        "start",
        "checkpoint",
        "end",
    ]
    progress = [e["stop"] for e in entries if e["event"] == "progress"]
    assert progress == [50, 100, 150, 200, 250, 300, 350, 400]
    assert ran.json["num_events"] == 400


def test_health_file_is_written_during_a_run(tgflow, events_csv, monkeypatch):
    found = []

    def look_at_health(_):
        monkeypatch.setattr(files, "HEALTH_SECONDS", 0.0)
        while not found or found[-1]["position"] < 150:
            found.append(files.read_health(Path("out/health.json")))

    act_at(monkeypatch, 200, look_at_health)
    monkeypatch.setattr("tgflow.run.monitoring.HEALTH_SECONDS", 0.0)
    assert tgflow("run", "-s", events_csv, "-o", "out", *SMALL).code == 0
    assert found[-1]["alive"]
    assert found[-1]["state"] in ("running", "waiting")
    assert not files.read_health(Path("out/health.json"))["alive"]


def test_info_finds_a_dead_process_and_a_damaged_checkpoint(tgflow, events_csv):
    assert tgflow("run", "-s", events_csv, "-o", "out", *SMALL).code == 0
    health = json.loads(Path("out/health.json").read_text())
    dead = health | {"state": "running", "updated": health["updated"] - 1000}
    Path("out/health.json").write_text(json.dumps(dead))
    out = tgflow("info", "out").out
    assert "its process died" in out
    assert "while running" in out
    assert "resume with: tgflow run --resume --out out" in out
    [checkpoint] = Path("out/checkpoints").iterdir()
    (checkpoint / "model.safetensors").write_bytes(b"")
    [entry] = tgflow("info", "out", "--json").json["checkpoints"]
    assert "model.safetensors" in entry["problem"]
    assert checkpoint.exists()


def records(directory):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_killed_run_logs_each_step_once(tgflow, resume, events_csv, tmp_path, monkeypatch):
    shown = fake_tensorboard(monkeypatch).shown
    log = RunLogger.log

    def killing(self, step, record):
        log(self, step, record)
        if step == 250:
            self.flush()
            raise Killed

    flags = ["-s", events_csv, "-o", "out", *SMALL, "--checkpoint-batches", 3]
    flags += ["--log-to", "tensorboard"]
    with monkeypatch.context() as patched:
        patched.setattr(RunLogger, "log", killing)
        with pytest.raises(Killed):
            tgflow("run", *flags)
    assert next(iter(shown.values()))[-1][0] == 250
    ran = resume()
    assert ran.code == 0, ran.err
    steps = [record["stop"] for record in records(tmp_path / "out")]
    assert steps == list(range(50, 401, 50))
    [board] = shown.values()
    assert [step for step, tag, _ in board if tag == "running/ap"] == steps
    losses = [value for _, tag, value in board if tag == "loss"]
    assert losses == [record["loss"] for record in records(tmp_path / "out")]


@pytest.mark.parametrize("command", ["run", "train"])
def test_missing_logger_is_refused_before_anything_is_created(
    tgflow, events_csv, monkeypatch, command
):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    ran = tgflow(command, "-s", events_csv, "-o", "out", *SMALL, "--log-to", "tensorboard")
    assert ran.code == 2
    assert install_command("tensorboard") in ran.err
    assert not Path("out").exists()


def test_event_files_of_tensorboard_are_bounded(tmp_path, monkeypatch):
    fake_tensorboard(monkeypatch)
    sizes = []
    for start in range(0, 180, 30):  # resumes, each of which begins a file
        with TensorBoard(tmp_path, step=start, max_bytes=1_000) as logger:
            for step in range(start + 1, start + 31):
                logger.log(step, {"loss": 0.5, "ap": 0.5})
                sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
                assert sizes[-1] >= min(100 * len(sizes), 1_000), "the latest figures are kept"
    assert 1_000 < max(sizes) <= 3_000
