"""torchrun starts a run as `--nproc` does and restarts it, but for what no restart mends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from helpers.live_runs import SMALL, same_run, write_events
from helpers.processes import environment
from helpers.rank_campaign import rank_pids
from tgflow.cli import main
from tgflow.cli.errors import DATA
from tgflow.runtime.files import read_health

PATIENCE = 500
"""Seconds for torchrun and all its attempts: each imports torch three times."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE)]
EVENTS = 600


@pytest.fixture
def events(tmp_path):
    return write_events(tmp_path / "events.csv", EVENTS)


def torchrun(folder, restarts, *arguments):
    """Start two ranks of a command; their errors go to a file for each attempt and rank."""
    options = ["--standalone", "--nproc-per-node", 2, "--max-restarts", restarts]
    options += ["--log-dir", folder / "said", "--redirects", 3, "-m", "tgflow", *arguments]
    command = [sys.executable, "-m", "torch.distributed.run", *map(str, options)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment() | {"OMP_NUM_THREADS": "1"},
    )


def attempts(folder):
    """Return what each rank of each attempt has said on stderr, by (attempt, rank)."""
    found = {}
    for file in (folder / "said").rglob("stderr.log"):
        *_, attempt, rank, _ = file.parts
        found[int(attempt.removeprefix("attempt_")), int(rank)] = file.read_text()
    return found


def learned(run):
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["stop"] if lines else 0


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_a_run_under_torchrun_ends_as_one_process_does(events, tmp_path, rank):
    one, two = tmp_path / "one", tmp_path / "two"
    options = [str(each) for each in ("--stream", events, *SMALL, "--checkpoint-batches", 3)]
    assert main(["run", *options, "--slices", "2", "--out", str(one)]) == 0
    slowly = () if rank is None else ("--speed", 60 * 60)
    runner = torchrun(tmp_path, 2, "run", *options, "--resume", "--out", two, *slowly)
    if rank is not None:
        while runner.poll() is None and learned(two) < EVENTS // 3:
            time.sleep(0.01)
        os.kill(rank_pids(runner.pid)[rank], signal.SIGKILL)
    said, _ = runner.communicate(timeout=PATIENCE)
    assert runner.returncode == 0, said
    same_run(one, two)
    assert {attempt for attempt, _ in attempts(tmp_path)} == ({0} if rank is None else {0, 1})


def test_what_no_restart_mends_ends_later_attempts_at_once(events, tmp_path):
    text = events.read_text().splitlines()
    events.write_text("\n".join([*text[:200], "7,8,not-a-time", *text[200:]]))
    run = tmp_path / "run"
    options = ("--stream", events, *SMALL, "--out", run, "--resume", "--max-bad-ratio", 0)
    runner = torchrun(tmp_path, 2, "run", *options)
    said, _ = runner.communicate(timeout=PATIENCE)
    assert runner.returncode == 1, "torchrun has one code for all"
    assert re.search(rf"exitcode +: {DATA} ", said)
    found = attempts(tmp_path)
    assert {attempt for attempt, _ in found} == {0, 1, 2}
    log = [json.loads(line) for line in (run / "run.log").read_text().splitlines()]
    assert [line["event"] for line in log].count("start") == 1
    why = log[-1]["text"]
    assert why in found[0, 0]
    for attempt in (1, 2):
        texts = [found[attempt, rank] for rank in range(2)]
        again = f"{why} (rank 0, in an earlier attempt: no restart mends that)"
        assert any(again in text for text in texts), texts  # the other may be ended before
    health = read_health(run / "health.json")
    assert health["state"] == "failed"
    assert health["reason"].partition(",")[0] in why, "but for settings, which flags name there"
