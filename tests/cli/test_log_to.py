"""`--log-to`: figures of a run are logged in its directory, each step once whatever is killed."""

from __future__ import annotations

import csv
import json

import pytest

from helpers.fake_loggers import fake_tensorboard, fake_wandb
from helpers.live_runs import SMALL, Killed
from tgflow.runtime.loggers import RunLoggers

EPOCHS = ("--dim", 8, "--batch-size", 50, "--threads", 1, "--epochs", 3, "--mrr-negatives", 5)


@pytest.fixture
def kill_after(monkeypatch):
    """Return a function that ends a run after figures were logged so many times."""

    def arm(times):
        original, left = RunLoggers.log, iter(range(times - 1))

        def log(self, step, record):
            original(self, step, record)
            if next(left, None) is None:
                monkeypatch.setattr(RunLoggers, "log", original)
                self.flush()
                raise Killed

        monkeypatch.setattr(RunLoggers, "log", log)

    return arm


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def records(directory):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_logs_each_step_once_though_it_is_killed(
    tgflow, resume, events_csv, tmp_path, monkeypatch, kill_after
):
    shown, runs = fake_tensorboard(monkeypatch).shown, fake_wandb(monkeypatch)
    kill_after(5)
    flags = ["-s", events_csv, "-o", "out", *SMALL, "--checkpoint-batches", 3]
    flags += ["--log-to", "csv", "--log-to", "tensorboard", "--log-to", "wandb"]
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


def test_a_training_logs_each_epoch_once_though_it_is_killed(
    tgflow, events_csv, tmp_path, kill_after
):
    kill_after(2)
    flags = ["-s", events_csv, "-o", "out", *EPOCHS, "--checkpoint-every", 1e-6, "--log-to", "csv"]
    with pytest.raises(Killed):
        tgflow("train", *flags)
    assert [row["step"] for row in rows(tmp_path / "out/metrics.csv")] == ["1", "2"]
    assert tgflow("train", "--resume", "-o", "out").code == 0
    found = rows(tmp_path / "out/metrics.csv")
    assert [row["step"] for row in found] == ["1", "2", "3"]
    val = [record["val.ap"] for record in records(tmp_path / "out")]
    assert [float(row["val.ap"]) for row in found] == val
