"""Command line runs on several ranks in forked processes, with faults and exit records."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from helpers import faults
from helpers.live_runs import SMALL
from helpers.worlds import run_apart
from tgflow.cli import inputs as assemble
from tgflow.cli import main
from tgflow.run import runner

_STOPPED_SECONDS = 25
SOON = 5.0
"""Seconds within which all ranks end after losing one."""


class End(NamedTuple):
    """Exit record of a rank."""

    code: int | None
    """Its exit code, negative for a signal; None if it had to be killed."""
    out: str = ""
    err: str = ""
    at: float = 0.0
    """Exit time, by `time.monotonic`."""


def arguments(events, out, *more):
    """Return the arguments of a small run."""
    options = ("--stream", events, "--out", out, *SMALL, *more)
    return ["run", *map(str, options)]


def run_ranks(
    tmp_path: Path,
    world: int,
    argv: Sequence[str] | Sequence[Sequence[str]],
    prepare: Callable[[int], None] | None = None,
) -> list[End]:
    """Return the exit record of each rank of a run.

    Args:
        tmp_path: Parent of the rendezvous directory.
        world: Number of ranks.
        argv: The arguments; a tuple has those of each rank.
        prepare: Called in each process, with its rank, before anything else; it can be pickled.
    """
    meeting = tmp_path / f"meeting-{time.monotonic_ns():020}"
    meeting.mkdir()
    found = run_apart(world, _rank_of_run, world, meeting, argv, prepare)
    return [End(*each.result) if each.result is not None else End(each.code) for each in found]


def codes(ends: Sequence[End]) -> list[int | None]:
    return [end.code for end in ends]


def seconds_after(tmp_path: Path, ends: Sequence[End]) -> list[float]:
    """Return the seconds from the last fault to the exit of ranks that were not killed."""
    latest = max(tmp_path.glob("meeting-*"))
    disturbed = float((latest / _DISTURBED).read_text())
    return [end.at - disturbed for end in ends if end.at]


def open_nothing(rank: int) -> None:
    """Make streams impossible to open, except on rank 0."""
    if rank > 0:
        assemble.open_partitioned = assemble.open_source = None


def signal_at(rank: int, position: int, number: int) -> Callable[[int], None]:
    """Send a signal to a rank once it has learned so many events."""
    return partial(_prepare, rank, position, partial(_signal, number))


def raise_at(rank: int, position: int, error: Exception) -> Callable[[int], None]:
    """Fail a rank once it has learned so many events."""
    return partial(_prepare, rank, position, partial(_raise, error))


def signal_in(
    rank: int, point: str, count: int, number: int, after: float = 0.0
) -> Callable[[int], None]:
    """Send a signal to a rank at the n-th hit of a point of `helpers.faults`.

    Args:
        rank: Rank that receives the signal.
        point: Name of the point.
        count: The n.
        number: Signal number.
        after: Seconds to wait at the point before.
    """
    return partial(_prepare_point, rank, point, count, number, after)


def _rank_of_run(rank, world, meeting, argv, prepare):
    """Run as one rank, and return its `End`."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "TGFLOW_MEETING": str(meeting),
    }
    if prepare is not None:
        prepare(rank)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv[rank] if isinstance(argv, tuple) else argv)
    return tuple(End(code, out.getvalue(), err.getvalue(), time.monotonic()))


def _prepare(disturbed, position, act, rank):
    if rank != disturbed:
        return
    record = runner.Runner._record

    def recording(self, step):
        record(self, step)
        if step.stop == position:
            _note()
            act(self)

    runner.Runner._record = recording


def _prepare_point(disturbed, point, count, number, after, rank):
    if rank == disturbed:
        faults.call_at(point, count, partial(_signal_late, after, number))


def _signal_late(after, number):
    time.sleep(after)
    _signal(number, None)


def _signal(number, _runner):
    _note()
    if number == signal.SIGSTOP:  # otherwise it would only end at the timeout
        script = f"sleep {_STOPPED_SECONDS}; kill -9 {os.getpid()}"
        subprocess.Popen(["sh", "-c", script], start_new_session=True)
    os.kill(os.getpid(), number)
    if number == signal.SIGTERM:
        time.sleep(0.5)


def _raise(error, _runner):
    raise error


_DISTURBED = "disturbed"


def _note():
    (Path(os.environ["TGFLOW_MEETING"]) / _DISTURBED).write_text(str(time.monotonic()))
