"""A run as others see it while it goes: metrics, health, JSON lines."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from helpers.live_runs import SMALL, write_features
from tgflow.runtime import files, runner, watch
from tgflow.runtime.metrics import METRICS


@pytest.fixture
def seen(monkeypatch):
    """Return what a watcher sees after each micro-batch, by position."""
    found = {}
    record = runner.Runner._record

    def recording(self, step):
        record(self, step)
        found[step.stop] = look(Path("out"))

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


def test_metrics_describe_the_run(tgflow, tmp_path, seen):
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
    absent = {metric.name for metric in METRICS if f"\n{metric.exported}" not in page}
    # only a topic has these, a GPU, ranks, or a stream with bad rows, or not read to its end
    assert absent <= {
        "tgflow_gpu_memory_bytes", "tgflow_gpu_memory_peak_bytes",
        "tgflow_rank_compute_seconds", "tgflow_rank_wait_seconds", "tgflow_rank_memory_bytes",
        "tgflow_rank_sent_bytes", "tgflow_sent_bytes",
        "tgflow_events_malformed", "tgflow_source_lag_records", "tgflow_source_rebuilds",
        "tgflow_source_outage_seconds", "tgflow_source_paused_seconds",
        "tgflow_watermark_seconds", "tgflow_watermark_age_seconds",
    }  # fmt: skip


def test_stderr_can_be_json_and_nothing_else(tgflow, events_csv, monkeypatch):
    monkeypatch.setattr(watch, "SECONDS_PER_LINE", 0.0)
    ran = tgflow("run", "-s", events_csv, "-o", "out", "--log-format", "json", "--json", *SMALL)
    entries = [json.loads(line) for line in ran.err.splitlines()]
    assert [e["event"] for e in entries if e["event"] != "progress"] == [
        "start",
        "checkpoint",
        "end",
    ]
    progress = [e["stop"] for e in entries if e["event"] == "progress"]
    assert progress == [50, 100, 150, 200, 250, 300, 350, 400]
    assert ran.json["num_events"] == 400


def test_health_is_written_while_it_runs(tgflow, events_csv, monkeypatch):
    found = []
    record = runner.Runner._record

    def recording(self, step):
        record(self, step)
        if step.stop == 200:
            monkeypatch.setattr(files, "HEALTH_SECONDS", 0.0)
            while not found or found[-1]["position"] < 150:
                found.append(files.read_health(Path("out/health.json")))

    monkeypatch.setattr(runner.Runner, "_record", recording)
    monkeypatch.setattr("tgflow.runtime.watch.HEALTH_SECONDS", 0.0)
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
