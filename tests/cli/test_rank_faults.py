"""Ranks that are killed, hang, send wrong data or run out of space: how and when all end."""

import errno
import os
import signal
from functools import partial

import pytest

from helpers.faults import BETWEEN_RANKS
from helpers.live_runs import same_run, write_events
from helpers.rank_runs import SOON, arguments, codes, run_ranks, seconds_after, signal_in
from tgflow.checkpoint.durable.fs import RealFs
from tgflow.cli import main
from tgflow.cli.errors import IO, UNAVAILABLE

pytestmark = pytest.mark.slow
EVENTS = 1_000
"""Enough that training goes on while the first checkpoint is written."""
KEPT = ("--slices", 3, "--checkpoint-batches", 2)
COUNTS = {"exchange": 4, "gather": 5, "broadcast": 4, "place": 1, "files": 1}
"""Hits of a fault point before the fault fires: during the run, with checkpoints."""


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    return write_events(tmp_path_factory.mktemp("events") / "events.csv", EVENTS)


@pytest.fixture(scope="module")
def one(events, tmp_path_factory):
    """The undisturbed run of one process."""
    out = tmp_path_factory.mktemp("one") / "run"
    assert main(arguments(events, out, *KEPT)) == 0
    return out


def assert_resumes(one, events, run, tmp_path, world=2):
    ends = run_ranks(tmp_path, world, arguments(events, run, *KEPT, "--resume"))
    assert codes(ends) == [0] * world, ends
    same_run(one, run)


def count_of(point):
    return COUNTS[point.rpartition("_")[2]]


@pytest.mark.parametrize("point", sorted(BETWEEN_RANKS))
@pytest.mark.parametrize("rank", range(3))
def test_rank_killed_at_any_point_ends_all_ranks_quickly(events, one, tmp_path, rank, point):
    run = tmp_path / "run"
    killed = signal_in(rank, point, count_of(point), signal.SIGKILL)
    ends = run_ranks(tmp_path, 3, arguments(events, run, *KEPT), killed)
    others = [end for number, end in enumerate(ends) if number != rank]
    assert ends[rank].code == -signal.SIGKILL, ends
    assert codes(others) == [UNAVAILABLE] * 2, ends
    assert max(seconds_after(tmp_path, others)) < SOON
    assert all(end.err for end in others)
    assert_resumes(one, events, run, tmp_path)


@pytest.mark.parametrize("point", ["ranks.before_exchange", "ranks.after_files"])
@pytest.mark.parametrize("rank", range(3))
def test_hanging_rank_ends_all_ranks_after_the_timeout(events, one, tmp_path, rank, point):
    """Includes faults during a sharded checkpoint, which rank 0 coordinates."""
    run, timeout = tmp_path / "run", 8.0  # a busy machine is silent for some seconds
    stopped = signal_in(rank, point, count_of(point), signal.SIGSTOP)
    argv = arguments(events, run, *KEPT, "--set", f"ranks.timeout={timeout}")
    ends = run_ranks(tmp_path, 3, argv, stopped)
    others = [end for number, end in enumerate(ends) if number != rank]
    assert ends[rank].code == -signal.SIGKILL, ends  # long after the others
    assert codes(others) == [UNAVAILABLE] * 2, ends
    seconds = seconds_after(tmp_path, others)
    assert max(seconds) < timeout + SOON
    assert timeout - 1 < max(seconds)
    assert any(f"rank {rank} (process" in end.err for end in others)
    assert_resumes(one, events, run, tmp_path)


def have_no_room(times, rank):
    """Fail so many writes of node files on rank 1."""
    create, refused = RealFs.create, []

    def creating(self, path):
        if path.name.startswith("memory-p") and len(refused) < times:
            refused.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return create(self, path)

    if rank == 1:
        RealFs.create = creating


def test_full_disk_at_one_rank_loses_a_checkpoint_or_ends_all(events, one, tmp_path):
    run = tmp_path / "run"
    ends = run_ranks(tmp_path, 2, arguments(events, run, *KEPT), partial(have_no_room, 1))
    assert codes(ends) == [0, 0], ends
    assert "no checkpoint was written" in (run / "run.log").read_text()
    same_run(one, run)
    events = write_events(tmp_path / "long.csv", 3 * EVENTS)  # time for three checkpoints in a row
    argv = arguments(events, tmp_path / "two", "--slices", 3, "--checkpoint-batches", 1)
    slowly = [*argv, "--speed", str(60 * 60)]
    ends = run_ranks(tmp_path, 2, slowly, partial(have_no_room, 10**9))
    assert ends[0].code == IO, ends
    assert ends[1].code in (IO, UNAVAILABLE)  # by its own write, or by the loss of rank 0
    assert "rank 1: " in ends[0].err
    ends = run_ranks(tmp_path, 2, [*argv, "--resume", "--speed", "1e9"])
    assert codes(ends) == [0, 0], ends
