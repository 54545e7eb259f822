"""`tgflow run` from end to end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from helpers.effort import slow
from helpers.live_runs import SMALL
from tgflow.checkpoint import load
from tgflow.config import load_config
from tgflow.ids import NodeIds


@pytest.mark.parametrize("model", ["tgn", "tgat"])
def test_run_leaves_all_that_it_promises(tgflow, events_csv, tmp_path, model):
    ran = tgflow("run", "-s", events_csv, "-m", model, "-o", "out", *SMALL)
    assert ran.code == 0
    out = tmp_path / "out"
    assert {p.name for p in out.iterdir()} == {
        "config.toml", "metrics.jsonl", "metrics.json", "report.html", "stream.json",
        "health.json", "run.log", "checkpoints", "log", "dead-letters", ".lock",
    }  # fmt: skip
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [r["stop"] for r in records] == [50, 100, 150, 200, 250, 300, 350, 400]
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["num_events"] == 400
    assert 0 < metrics["test.ap"] <= 1
    assert 0 < metrics["prequential.mrr"] <= 1
    assert metrics["events_per_second"] > 0
    for name in ("report.html", "checkpoints", "AP", "MRR", "event-exact", "ties"):
        assert name in ran.out
    assert "events/s" in ran.err


@pytest.mark.parametrize(
    ("model", "strategy"), [("tgn", "decayed"), slow("tgat", "window"), slow("tgat", "uniform")]
)
def test_neighbors_are_sampled_as_asked(tgflow, events_csv, tmp_path, model, strategy):
    span = [] if strategy == "uniform" else ["--span", 3600]
    how = ["--strategy", strategy, *span, "-m", model, "--json", "--seed", 1]
    ran = tgflow("run", "-s", events_csv, *how, "-o", "a", *SMALL)
    recent = tgflow("run", "-s", events_csv, "-m", model, "--json", "--seed", 1, *SMALL)
    assert ran.json["prequential.loss"] != recent.json["prequential.loss"]
    again = tgflow("run", "--config", "a/config.toml", "-o", "b", "--json")
    assert ran.json["prequential.loss"] == again.json["prequential.loss"]


def test_the_checkpoint_holds_ids_and_events(tgflow, events_csv, tmp_path):
    assert tgflow("run", "-s", events_csv, "-o", "out", *SMALL).code == 0
    [path] = (tmp_path / "out" / "checkpoints").iterdir()
    checkpoint = load(path)
    ids = NodeIds()
    ids.load_state_dict(checkpoint.sections["ids"])
    assert sorted(ids.decode(checkpoint.sections["events"]["src"].unique())) == list(range(20))
    assert checkpoint.meta["model"]["name"] == "tgn+pairs"


def test_json_is_all_that_stdout_holds(tgflow, events_csv):
    ran = tgflow("run", "-s", events_csv, "--limit", 120, "--json", *SMALL)
    assert ran.json["num_events"] == 120
    assert ran.json["model"] == "tgn+pairs"


def test_the_default_run_reads_the_history_of_pairs_and_tgn_does_not(tgflow, events_csv):
    ran = tgflow("run", "-s", events_csv, "--limit", 100, "-o", "pairs", *SMALL)
    assert "tgn+pairs, 100 events" in ran.out
    plain = ["-s", events_csv, "--limit", 100, "-o", "plain", *SMALL]
    ran = tgflow("run", "-m", "tgn", "--json", *plain)
    assert ran.json["model"] == "tgn"
    assert "counts_bytes" not in ran.json
    ran = tgflow("run", "--resume", "--limit", 150, "--json", *plain[:2], "-o", "plain", *SMALL)
    assert ran.json["model"] == "tgn"
    ran = tgflow("run", "--resume", "--limit", 150, "--json", "-s", events_csv, "-o", "pairs")
    assert ran.json["model"] == "tgn+pairs"
    assert ran.json["counts_bytes"] > 0


def test_the_resolved_settings_start_the_same_run_again(tgflow, events_csv, tmp_path):
    first = tgflow("run", "-s", events_csv, "--seed", 3, "-o", "a", "--json", *SMALL)
    again = tgflow("run", "--config", "a/config.toml", "-o", "b", "--json")
    assert load_config(tmp_path / "a/config.toml") == load_config(tmp_path / "b/config.toml")
    for key in ("prequential.ap", "prequential.mrr", "prequential.loss"):
        assert first.json[key] == again.json[key]


def test_run_directories_are_never_mixed(tgflow, events_csv, tmp_path):
    for _ in range(2):
        assert tgflow("run", "-s", events_csv, "--limit", 50, *SMALL).code == 0
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"made-tgn", "made-tgn-2"}


def test_no_events_at_all_is_a_run_too(tgflow, tmp_path):
    (tmp_path / "none.csv").write_text("src,dst,t\n")
    ran = tgflow("run", "-s", "none.csv", "--json", *SMALL)
    assert ran.code == 0
    assert ran.json["num_events"] == 0


def test_an_own_model_is_named_by_module_and_class(tgflow, events_csv, tmp_path):
    (tmp_path / "own_tgat.py").write_text(
        "import tgflow as tg\n"
        "class Mine(tg.TGAT):\n"
        "    def __init__(self, **settings):\n"
        "        super().__init__(embedding_dim=8, time_dim=4, neighbors=2)\n"
    )
    ran = tgflow("run", "-s", events_csv, "-m", "own_tgat:Mine", "--json", *SMALL)
    assert ran.code == 0
    assert ran.json["model"] == "own_tgat:Mine"


@pytest.mark.slow  # another command does so in test_commands.py
def test_the_installed_module_runs_in_a_process_of_its_own(events_csv, tmp_path):
    command = [sys.executable, "-m", "tgflow", "run", "-s", events_csv, "--limit", "100", "--json"]
    command += [str(arg) for arg in SMALL]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_events"] == 100
    assert "100%" in done.stderr
