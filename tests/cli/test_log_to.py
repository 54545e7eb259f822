"""`--log-to`: figures of a run are logged in its directory, each step once whatever is killed."""

from __future__ import annotations

import csv
import json

import pytest

from helpers.fake_loggers import fake_tensorboard, fake_wandb
from helpers.live_runs import SMALL, Killed
from tgflow.runtime.loggers import RunLoggers


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def records(directory):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_logs_each_step_once_though_it_is_killed(
    tgflow, resume, events_csv, tmp_path, monkeypatch
):
    shown, runs = fake_tensorboard(monkeypatch).shown, fake_wandb(monkeypatch)
    log = RunLoggers.log

    def killing(self, step, record):
        log(self, step, record)
        if step == 250:
            self.flush()
            raise Killed

    flags = ["-s", events_csv, "-o", "out", *SMALL, "--checkpoint-batches", 3]
    flags += ["--log-to", "csv", "--log-to", "tensorboard", "--log-to", "wandb"]
    with monkeypatch.context() as patched:
        patched.setattr(RunLoggers, "log", killing)
        with pytest.raises(Killed):
            tgflow("run", *flags)
    assert [int(row["step"]) for row in rows(tmp_path / "out/metrics.csv")][-1] == 250
    ran = resume()
    assert ran.code == 0, ran.err
    steps = [record["stop"] for record in records(tmp_path / "out")]
    assert steps == list(range(50, 401, 50))
    found = rows(tmp_path / "out/metrics.csv")
    assert [int(row["step"]) for row in found] == steps
    assert [float(row["loss"]) for row in found] == [r["loss"] for r in records(tmp_path / "out")]
    [board] = shown.values()
    assert [step for step, tag, _ in board if tag == "running/ap"] == steps
    assert [step for run in runs for step, _ in run.logged] == steps
    assert {run.options["name"] for run in runs} == {"out"}
