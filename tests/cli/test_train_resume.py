"""`tgflow train --resume`: a training that was ended anywhere comes to the same bits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tgflow as tg
from helpers.campaign import ENVIRONMENT
from helpers.live_runs import Killed, write_features
from helpers.processes import environment
from helpers.records import untimed

SMALL = ("--dim", 8, "--batch-size", 50, "--threads", 1, "--epochs", 3, "--mrr-negatives", 5)
FLAGS = (*SMALL, "--learning-rate", 0.01, "--checkpoint-every", 1e-6)
TIMED = ("machine", "tables", "threads", "stream")


def figures(directory):
    found = untimed(json.loads((directory / "metrics.json").read_text()))
    found["runs"] = [untimed(run) for run in found.get("runs", [])]
    return {key: value for key, value in found.items() if key not in TIMED}


def records(directory):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [untimed(json.loads(line)) for line in lines]


def digests(directory):
    return {
        str(path.relative_to(directory)): json.loads(path.read_text())["state_sha256"]
        for path in sorted((directory / "checkpoint").rglob("manifest.json"))
    }


def same_training(left, right):
    left, right = Path(left), Path(right)
    assert digests(left) == digests(right) != {}
    assert figures(left) == figures(right)
    assert records(left) == records(right)
    assert not (right / "checkpoints").exists(), "the model is left, and nothing else"


def test_it_goes_on_after_the_newest_epoch_with_the_same_bits(tgflow, events_csv, kill_after):
    assert tgflow("train", "-s", events_csv, *FLAGS, "-o", "whole").code == 0
    kill_after(2)
    with pytest.raises(Killed):
        tgflow("train", "-s", events_csv, *FLAGS, "-o", "out")
    with pytest.raises(FileNotFoundError, match="has not come to its end; go on with tgflow train"):
        tg.open_run("out")
    assert "tgflow train --resume --out out" in tgflow("info", "out").out
    ran = tgflow("train", "--resume", "-o", "out")
    assert ran.code == 0, ran.err
    assert "epoch   3/3" in ran.err
    assert "epoch   2/3" not in ran.err
    same_training("whole", "out")
    assert tg.open_run("out").position == 400
    again = tgflow("train", "--resume", "-o", "out", "--json")
    assert again.code == 0
    assert again.json["test.ap"] == json.loads(Path("out/metrics.json").read_text())["test.ap"]


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 3, 4, 6])
def test_with_several_seeds_those_that_are_done_are_kept(tgflow, tmp_path, kill_after, epochs):
    stream = write_features(tmp_path / "made.csv", 300)
    flags = ("-s", stream, "--features", "f*", "--edge-table", "disk", *FLAGS, "--seeds", 2)
    assert tgflow("train", *flags, "-o", "whole").code == 0
    kill_after(epochs)
    with pytest.raises(Killed):
        tgflow("train", *flags, "-o", "out")
    ran = tgflow("train", "--resume", "-o", "out", "--seeds", 3)
    assert ran.code == 2
    assert "--seeds: the training was started with 2, got 3" in ran.err
    ran = tgflow("train", "--resume", "-o", "out")
    assert ran.code == 0, ran.err
    same_training("whole", "out")
    assert tg.open_run("out/checkpoint/1").position == 300


@pytest.mark.slow
def test_what_cannot_be_resumed_is_a_sentence(tgflow, events_csv, kill_after, tmp_path):
    kill_after(1)
    with pytest.raises(Killed):
        tgflow("train", "-s", events_csv, *FLAGS, "-o", "out")
    assert tgflow("run", "-s", events_csv, "--dim", 8, "-o", "live", "--limit", 100).code == 0
    for flags, code, said in (
        (("-s", events_csv, "-o", "out"), 74, "resume it if it is a run: --resume"),
        (("--resume",), 2, "--resume needs the run's directory"),
        (("--resume", "-o", "out", "--dim", 9), 2, "was started with other settings"),
        (("--resume", "-o", "live"), 2, "live is of tgflow run; resume it with tgflow run"),
    ):
        ran = tgflow("train", *flags)
        assert ran.code == code, ran.err
        assert said in ran.err
        assert "--allow-config-change" not in ran.err, "train has no such flag"
    lines = events_csv.read_text().splitlines()
    events_csv.write_text("\n".join(lines[:-10]) + "\n")
    ran = tgflow("train", "--resume", "-o", "out")
    assert ran.code == 66
    assert "it has other events than when out was started (400 then, 390 now)" in ran.err


@pytest.mark.slow
def test_a_training_whose_process_is_killed_comes_to_the_same_bits(tgflow, events_csv):
    flags = ("-s", events_csv, *FLAGS, "--epochs", 12)
    assert tgflow("train", *flags, "-o", "whole").code == 0
    words = [sys.executable, "-m", "tgflow", "train", *flags, "-o", "out", "--resume"]
    kills = 0
    for num_lines in (2, 5, 9):
        process = subprocess.Popen(
            [str(word) for word in words], env=environment() | ENVIRONMENT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        lines = Path("out/metrics.jsonl")
        while process.poll() is None:
            if lines.exists() and len(lines.read_text().splitlines()) >= num_lines:
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        process.wait()
    assert kills
    assert tgflow("train", "--resume", "-o", "out").code == 0
    same_training("whole", "out")
