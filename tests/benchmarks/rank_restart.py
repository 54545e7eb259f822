"""How long ranks take to learn on after one of them was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tgflow.bench.row import Params, Row

NAME = "ranks, kill -9 to learning again"
SECONDS = 15.0
KILLS = 3
BATCHES = 25
"""Micro-batches between checkpoints, and from one kill's recovery to the next kill."""
LIMIT_SECONDS = 300.0
"""For the ranks to get on by one step of this."""
_PAUSE = 0.005


def restart_row(data: Path, kills: int, params: Params) -> Row:
    """Return how long it takes from a kill to a record of events that were not learned before it.

    Two ranks run over a file with `--nproc 2`, at full rate; the one that started last is killed.

    Args:
        data: The events.
        kills: Of the same run; the row has their median.
        params: What to say of them.
    """
    return Row(NAME, median(recoveries(data, kills)), "s", {**params, "ranks": 2}, target=SECONDS)


def recoveries(data: Path, kills: int) -> Iterator[float]:
    """Yield seconds from each kill to the first record past those that there were.

    Raises:
        RuntimeError: If the run ends before, or takes minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        how = ["--nproc", "2", "--threads", "1", "--checkpoint-batches", str(BATCHES)]
        command = [sys.executable, "-m", "tgflow", "run", "--stream", str(data), "--out", str(out)]
        with subprocess.Popen([*command, *how], stdout=subprocess.DEVNULL) as runner:
            try:
                for _ in range(kills):
                    due = records(out) + BATCHES
                    _wait(runner, out, due)
                    before = records(out)
                    began = time.perf_counter()
                    os.kill(ranks_of(runner.pid)[-1], signal.SIGKILL)
                    _wait(runner, out, before + 1)
                    yield time.perf_counter() - began
            finally:
                runner.terminate()


def records(run: Path) -> int:
    """Return how many micro-batches a run has a record of."""
    path = run / "metrics.jsonl"
    *lines, _ = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
    return 1 + int(json.loads(lines[-1])["index"]) if lines else 0


def ranks_of(pid: int) -> list[int]:
    """Return the processes that a process has started, in order."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()))


def _wait(runner: subprocess.Popen[bytes], run: Path, due: int) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while records(run) < due:
        if runner.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"ranks that run over {run} did not get to micro-batch {due}")
        time.sleep(_PAUSE)
