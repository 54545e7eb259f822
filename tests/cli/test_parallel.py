"""`tgflow train --parallel memory=K`: labeled results, ends of its processes, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from helpers.live_runs import SMALL, write_events
from helpers.rank_campaign import rank_pids
from helpers.records import untimed
from tgflow.cli import main
from tgflow.cli.errors import USAGE

OPTIONS = ("-m", "tgn", *SMALL, "--parallel", "memory=2")


def program(events, out, *more):
    command = [sys.executable, "-m", "tgflow", "train", events, *OPTIONS, "--out", out, *more]
    return subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def events(tmp_path):
    return write_events(tmp_path / "events.csv", 1_200)


@pytest.mark.slow
def test_results_and_records_name_the_memories_and_repeat(events, tmp_path):
    found = []
    for name in ("one", "two"):
        runner = program(events, tmp_path / name, "--epochs", 2, "--seeds", 2)
        shown, said = runner.communicate(timeout=120)
        assert runner.returncode == 0, said
        assert "tgn with parallel memory=2, 1,200 events" in " ".join(shown.split())
        metrics = json.loads((tmp_path / name / "metrics.json").read_text())
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        assert metrics["parallel"] == "memory=2"
        assert all(run["parallel"] == "memory=2" for run in metrics["runs"])
        assert [record["parallel"] for record in records] == ["memory=2"] * 4
        assert (
            "TGN trained on events, parallel memory=2"
            in (tmp_path / name / "report.html").read_text()
        )
        found.append([untimed(each) for each in (*metrics["runs"], *records)])
    assert found[0] == found[1]
    again = program(events, tmp_path / "one", "--epochs", 2, "--seeds", 2, "--resume")
    _, said = again.communicate(timeout=60)
    assert again.returncode == 0, said


@pytest.mark.slow
def test_killed_process_ends_the_training_with_its_name(events, tmp_path):
    out = tmp_path / "out"
    runner = program(events, out, "--epochs", 10_000, "--patience", 10_000)
    records = out / "metrics.jsonl"
    while runner.poll() is None and not (records.exists() and records.read_text()):
        time.sleep(0.01)
    os.kill(rank_pids(runner.pid)[1], signal.SIGKILL)
    _, said = runner.communicate(timeout=60)
    assert runner.returncode == 128 + signal.SIGKILL, said
    assert "rank 1 was killed by SIGKILL" in said
    assert "rank 0 lost another one: rank 1 (process " in said
    assert not (out / "checkpoint").exists()
    resumed = program(events, out, "--epochs", 10_000, "--patience", 10_000, "--resume")
    _, said = resumed.communicate(timeout=60)
    assert resumed.returncode == USAGE
    assert "training with several processes saves no epochs" in said


@pytest.mark.slow
def test_model_without_memory_is_refused(events, tmp_path):
    runner = program(events, tmp_path / "out", "-m", "tgat")
    _, said = runner.communicate(timeout=60)
    assert runner.returncode == USAGE, said
    assert "--parallel memory=2 is for models with a memory, and TGAT has none" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("memory=2", "--nproc", "2"), "--parallel memory=2 starts 2 processes by itself"),
        (("memory=9",), "--parallel memory=9 is not --parallel memory=K, with K from 1 to 8"),
        (("memory=2", "--slices", "2"), "--parallel memory=2 learns whole batches, got --slices 2"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(capsys, more, said):
    assert main(["train", "x.csv", "--parallel", *more]) == USAGE
    assert said in " ".join(capsys.readouterr().err.split())


def test_parallel_under_a_launcher_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "x.csv", "--parallel", "memory=2"]) == USAGE
    assert "2 ranks (nproc, parallel) cannot be started here" in capsys.readouterr().err
