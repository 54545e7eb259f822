"""Runs of several ranks: they end as one process does, together, and with one word to whoever runs
them."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from helpers.live_runs import SMALL, same_run, write_events
from helpers.worlds import run_apart
from tgflow.cli import main
from tgflow.cli.errors import DATA, INTERNAL, NO_INPUT, UNAVAILABLE, USAGE
from tgflow.runtime import runner
from tgflow.runtime.health import read_health

EVENTS = 400


SHARDED = ("--rank-graph", "sharded", "--rank-memory", "sharded")


@pytest.fixture
def events(tmp_path):
    return write_events(tmp_path / "events.csv", EVENTS, nodes=90)


def arguments(events, out, *more):
    options = ("--stream", events, "--out", out, *SMALL, *more)
    return ["run", *map(str, options)]


def rank_of_run(rank, world, meeting, argv, plan):
    """Be one rank of a run: return exit code, stdout and stderr.

    Args:
        argv: The arguments; a tuple has those of each rank.
        plan: What happens to which rank after how many events: (rank, position, signal, error or
            function).
    """
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "TGFLOW_MEETING": str(meeting),
    }
    if plan is not None and plan[0] == rank:
        disturb(*plan[1:])
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv[rank] if isinstance(argv, tuple) else argv)
    return code, out.getvalue(), err.getvalue()


def disturb(position, what):
    """Have this process get a signal, or fail, once it has learned so many events."""
    record = runner.Runner._record

    def recording(self, step):
        record(self, step)
        if step.stop == position:
            if isinstance(what, int):
                os.kill(os.getpid(), what)
                time.sleep(0.5)
            elif isinstance(what, BaseException):
                raise what
            else:
                what()

    runner.Runner._record = recording


def run_ranks(tmp_path, world, argv, plan=None):
    """Return how each rank of a run has ended, as (exit code, stdout, stderr)."""
    meeting = tmp_path / f"meeting-{time.monotonic_ns()}"
    meeting.mkdir()
    found = run_apart(world, rank_of_run, world, meeting, argv, plan)
    return [each.result if each.result is not None else (each.code, "", "") for each in found]


def codes(ends):
    return [code for code, _, _ in ends]


def alone(events, out, *more):
    assert main(arguments(events, out, *more)) == 0
    return out


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def shown(capsys):
    """Return what was printed, on one line."""
    return " ".join(capsys.readouterr().out.split())


def test_ranks_end_as_one_process_does_and_rank_0_alone_says_so(events, tmp_path, capsys):
    one = alone(events, tmp_path / "one", "--slices", 2)
    ends = run_ranks(tmp_path, 2, arguments(events, tmp_path / "two", "--json"))
    assert codes(ends) == [0, 0], ends
    same_run(one, tmp_path / "two")
    (_, said, _), (_, silent, errors) = ends
    assert json.loads(said)["num_events"] == EVENTS
    assert (silent, errors) == ("", "")
    own = lines(tmp_path / "two" / "ranks" / "001.log")
    assert [line["event"] for line in own] == ["start", "end"]
    health = read_health(tmp_path / "two" / "health.json")
    assert [*health["ranks"]] == ["0", "1"]
    for each in health["ranks"].values():
        assert each["memory_bytes"] > 1 << 20
        assert each["sent_bytes"].keys() == {"gradient", "rows", "queries", "other"}
    assert health["ranks"]["0"]["compute_seconds"] > 0
    assert health["ranks"]["0"]["sent_bytes"]["gradient"] > 0
    assert json.loads(said)["ranks"].keys() == health["ranks"].keys()
    assert main(["info", str(tmp_path / "two")]) == 0
    assert re.search(r"rank 1 +computes .* s, waits .* s, holds .*; sent: gradient", shown(capsys))


def test_ranks_that_each_have_a_part_end_as_one_process_does(events, tmp_path):
    """The last checkpoint too, which no rank could write alone; any number of ranks reads it."""
    one = alone(events, tmp_path / "one", "--slices", 3, "--limit", 200)
    argv = arguments(events, tmp_path / "three", "--limit", 200, *SHARDED)
    ends = run_ranks(tmp_path, 3, argv)
    assert codes(ends) == [0] * 3, ends
    same_run(one, tmp_path / "three")


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [(), SHARDED])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_any_rank_ends_all_with_what_is_learned_kept(events, tmp_path, rank, sharded):
    one = alone(events, tmp_path / "one", "--slices", 2)
    two = tmp_path / "two"
    slowly = arguments(events, two, "--speed", 60 * 100, *sharded)
    ends = run_ranks(tmp_path, 2, slowly, plan=(rank, 100, signal.SIGTERM))
    assert codes(ends) == [0, 0], ends
    stopped_at = lines(two / "metrics.jsonl")[-1]["stop"]
    assert 100 <= stopped_at < EVENTS
    ends = run_ranks(tmp_path, 2, arguments(events, two, "--resume", "--speed", 1e9))
    assert codes(ends) == [0, 0], ends
    same_run(one, two)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_rank_ends_the_others_and_all_resume_with_the_same_bits(events, tmp_path, rank):
    one = alone(events, tmp_path / "one", "--checkpoint-batches", 2, "--slices", 3)
    two = tmp_path / "two"
    argv = arguments(events, two, "--checkpoint-batches", 2)
    ends = run_ranks(tmp_path, 3, argv, plan=(rank, 200, signal.SIGKILL))
    assert ends[rank][0] == -signal.SIGKILL
    others = [end for number, end in enumerate(ends) if number != rank]
    assert codes(others) == [UNAVAILABLE] * 2, ends
    if rank > 0:
        assert f"rank {rank} " in others[0][2], "rank 0 names it"
    ends = run_ranks(tmp_path, 2, [*argv, "--resume"])
    assert codes(ends) == [0, 0], ends
    same_run(one, two)


@pytest.mark.slow
def test_what_rank_0_cannot_open_ends_all_with_its_code(tmp_path):
    ends = run_ranks(tmp_path, 2, arguments(tmp_path / "nothing.csv", tmp_path / "run"))
    assert codes(ends) == [NO_INPUT] * 2, ends
    assert ends[1][2].startswith("rank 1: rank 0 has ended: ")
    assert "nothing.csv" in ends[1][2]


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [(), SHARDED])
def test_bad_events_end_all_with_the_code_of_bad_data(events, tmp_path, sharded):
    text = events.read_text().splitlines()
    events.write_text("\n".join([*text[:200], "7,8,not-a-time", *text[200:]]))
    run = tmp_path / "run"
    ends = run_ranks(tmp_path, 2, arguments(events, run, "--max-bad-ratio", 0, *sharded))
    assert codes(ends) == [DATA] * 2, ends
    assert [*saved(run).values()] == [64], "what was learned before is kept, by all ranks"


def with_own_rate(rank):
    return arguments(Path("events.csv"), Path("run"), "--lr", f"1e-{3 + rank}")


@pytest.mark.slow
def test_ranks_with_other_settings_are_refused(tmp_path):
    ends = run_ranks(tmp_path, 2, tuple(map(with_own_rate, range(2))))
    assert codes(ends) == [USAGE] * 2, ends
    for _, _, said in ends:
        assert "rank 1 has --learning-rate=0.0001 and rank 0 has --learning-rate=0.001" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--edge-table", "disk"], "--edge-table"),
        (["--interface", "nowhere0"], "nowhere0"),
        (["--rank-memory", "halved"], "--rank-memory"),
    ],
)
def test_settings_for_one_process_are_refused(events, tmp_path, more, said):
    ends = run_ranks(tmp_path, 2, arguments(events, tmp_path / "run", *more))
    assert codes(ends) == [USAGE] * 2, ends
    assert all(said in errors for _, _, errors in ends), ends


@pytest.mark.slow
def test_a_fault_of_one_rank_ends_all(events, tmp_path):
    fault = RuntimeError("a fault of rank 1")
    ends = run_ranks(tmp_path, 2, arguments(events, tmp_path / "run"), plan=(1, 200, fault))
    assert codes(ends) == [UNAVAILABLE, INTERNAL], ends
    assert "rank 1: RuntimeError: a fault of rank 1" in ends[1][2]


@pytest.mark.slow
def test_ranks_train_offline_as_one_process_does(events, tmp_path):
    options = ("--data", events, *SMALL, "--epochs", 2, "--dropout", 0.1)
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["train", *map(str, options), "--out", str(one), "--slices", "2"]) == 0
    argv = ["train", *map(str, options), "--out", str(two)]
    assert codes(run_ranks(tmp_path, 2, argv)) == [0, 0]
    found, expected = (
        {
            file.name: file.read_bytes()
            for file in sorted((run / "checkpoint").iterdir())
            if file.name != "manifest.json"
        }
        for run in (one, two)
    )
    assert found == expected
    digests = [
        json.loads((run / "checkpoint" / "manifest.json").read_text())["state_sha256"]
        for run in (one, two)
    ]
    assert digests[0] == digests[1]


def saved(run):
    """Return how many parts of nodes each checkpoint of a run has, by its name."""
    return {
        path.name: len([*path.glob("memory-p*")]) for path in (run / "checkpoints").glob("ckpt-*")
    }


def die_once_saved(run, before):
    """End this process like a crash, once there is a checkpoint that was not there before."""
    while saved(run).keys() <= before:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [(), SHARDED, SHARDED[2:]])
def test_runs_resume_with_any_number_of_ranks_from_what_ranks_wrote_together(tmp_path, sharded):
    """Each time the last rank is killed, after a checkpoint that all of its world have written."""
    events = write_events(tmp_path / "events.csv", 2 * EVENTS, nodes=90)
    options = ("--slices", 4, "--checkpoint-batches", 1)
    one, many = alone(events, tmp_path / "one", *options), tmp_path / "many"
    argv = arguments(events, many, *options, "--resume", *sharded)
    for world, position in ((2, 200), (1, 400), (4, 650)):
        die = functools.partial(die_once_saved, many, {*saved(many)})
        ends = run_ranks(tmp_path, world, argv, (world - 1, position, die))
        assert codes(ends) == [UNAVAILABLE] * (world - 1) + [-signal.SIGKILL], ends
        assert {*saved(many).values()} == {64}
    ends = run_ranks(tmp_path, 3, argv)
    assert codes(ends) == [0] * 3, ends
    same_run(one, many)
