"""An offline comparison that was ended anywhere goes on to what it would have come to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from helpers.campaign import ENVIRONMENT
from helpers.live_runs import Killed, write_events
from helpers.processes import environment
from helpers.records import untimed
from tgflow.compare.outcome import Outcome

SMALL = ("--dim", 8, "--batch-size", 50, "--threads", 1, "--seeds", 1, "--epochs", 3)
MODELS = ("--models", "recency,jodie,slow=tgn+pairs", "--model-set", "slow.learning_rate=0.0001")
EVERY_EPOCH = ("--checkpoint-every", 1e-6)
FLAGS = ("--protocol", "dyglib/1", "--learning-rate", 0.01, *MODELS, *SMALL, *EVERY_EPOCH)


def participants(directory):
    found = json.loads((directory / "metrics.json").read_text())["participants"]
    return {key: untimed({**each, "microseconds": 0}) for key, each in found.items()}


def same_outcome(left, right):
    assert participants(left) == participants(right)
    scores, others = Outcome.read(left).scores, Outcome.read(right).scores
    assert list(scores) == list(others)
    for key in scores:
        assert np.array_equal(scores[key], others[key], equal_nan=True), key


def test_it_goes_on_after_the_newest_epoch_with_the_same_bits(tgflow, events_csv, kill_after):
    assert tgflow("compare", "-s", events_csv, *FLAGS, "-o", "whole").code == 0
    kill_after(6)  # recency has one, jodie three, and the third model two
    with pytest.raises(Killed):
        tgflow("compare", "-s", events_csv, *FLAGS, "-o", "out")
    newest = max(Path("out/checkpoints").iterdir())
    noted = json.loads((newest / "manifest.json").read_text())["meta"]
    assert [each["key"] for each in noted["trained"]] == ["recency/0", "jodie/0"]
    assert noted["under_way"]["best"]["totals"]["epochs"] == 2
    assert "tgflow compare --resume --out out" in tgflow("info", "out").out
    ran = tgflow("compare", "--resume", "-o", "out")
    assert ran.code == 0, ran.err
    same_outcome(Path("whole"), Path("out"))
    again = tgflow("compare", "-s", events_csv, *FLAGS, "-o", "out", "--resume")
    assert again.code == 0, again.err
    same_outcome(Path("whole"), Path("out"))


def test_other_events_and_other_settings_are_refused(tgflow, events_csv, kill_after):
    flags = ("--protocol", "dyglib/1", "--models", "recency", *SMALL)
    kill_after(1)
    with pytest.raises(Killed):
        tgflow("compare", "-s", events_csv, *flags, "-o", "out")
    assert tgflow("compare", "--resume", "-o", "out").code == 0  # nothing was saved: from the start
    changed = tgflow("compare", "--resume", "-o", "out", "--epochs", 4)
    assert changed.code == 2
    assert "--epochs" in changed.err
    assert "leave them out to resume as it was, or give another --out" in changed.err
    assert "--allow-config-change" not in changed.err, "compare has no such flag"
    assert "counts from here on" not in changed.err
    lines = events_csv.read_text().splitlines()
    events_csv.write_text("\n".join(lines[:-1]) + "\n")
    refused = tgflow("compare", "--resume", "-o", "out")
    assert refused.code == 66
    assert "other events than when out was started (400 then, 399 now)" in refused.err


@pytest.mark.slow
def test_it_is_killed_again_and_again(tmp_path):
    stream = write_events(tmp_path / "made.csv", 2000)
    command = [sys.executable, "-m", "tgflow", "compare", "-s", str(stream), *map(str, FLAGS)]

    def start(out):
        flags = ["--resume", "--out", str(tmp_path / out)]
        return subprocess.Popen([*command, *flags], env=environment() | ENVIRONMENT)

    assert start("whole").wait(300) == 0
    kills, newest = 0, ""
    while True:
        child = start("killed")
        while child.poll() is None:
            found = max((path.name for path in (tmp_path / "killed").glob("checkpoints/ckpt-*")),
                        default="")  # fmt: skip
            if found > newest:
                child.send_signal(signal.SIGKILL)
            time.sleep(0.002)
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL
        kills, newest = kills + 1, found
    assert kills > 3
    same_outcome(tmp_path / "whole", tmp_path / "killed")
