"""The benchmark of ranks at tiny sizes: who takes part, and what its rows are held to."""

from __future__ import annotations

import math

import pytest

from benchmarks import ranks
from benchmarks.rank_restart import recoveries
from benchmarks.rank_work import Work, WorkFigures, measure
from benchmarks.ranks import RankContender, speed_rows, start
from helpers.live_runs import write_events
from helpers.worlds import in_world
from tgflow.bench.setup import Options

WORK = Work("tgn", batch=20, slices=1, warm_up=1, batches=2, dim=4)


def measured(peers, work):
    return measure(work, peers)


def check_pair(first, second):
    for each in (first, second):
        assert each.seconds > 0
        assert each.cpu_seconds > 0
        assert each.calls["step"] == each.calls["gradient"] == 2
    assert first.bytes["order"] == 2 * 8
    assert second.bytes["figures"] == 2 * 64


@pytest.mark.slow
def test_what_is_sent_is_counted_from_behind_the_warm_up():
    check_pair(*in_world(2, measured, Work("tgn", 20, 2, 1, 2, dim=4)))


@pytest.mark.slow
def test_ranks_learn_on_after_each_kill(tmp_path):
    events = write_events(tmp_path / "events.csv", 40_000)
    assert all(0 < seconds < 60 for seconds in recoveries(events, 2))


@pytest.mark.slow
def test_contenders_are_new_processes():
    check_pair(*start(RankContender(Work("tgn", 20, 2, 1, 2, dim=4), world=2)))
    assert [each.calls for each in start(RankContender(WORK, world=0, copies=2))] == [{}, {}]


def took(seconds):
    """One process, which sends in two micro-batches what ranks send."""
    calls = {"step": 2, "gradient": 2}
    return WorkFigures(seconds, seconds / 2, calls, {"gradient": 6000})


def test_two_ranks_are_held_to_one_process_or_to_what_the_machine_can(monkeypatch):
    seconds = {2: 2.0, 0: 3.0}

    def made(contender):
        pace = control if contender.copies == 2 else seconds[contender.world]
        return [took(pace)] * max(contender.world, contender.copies)

    monkeypatch.setattr(ranks, "start", made)
    control = 1.5
    row, alone, threads, beside = speed_rows(WORK, 1.4, Options())
    assert (row.value, row.baseline, row.target_ratio) == (20.0, 40 / 3, 1.4)
    assert row.reached
    assert [each.value for each in (alone, threads, beside)] == [40 / 3, 40 / 3, 40 / 1.5]
    control = 1.9  # the machine has no more to give: below 1.8 times one process
    row, *_ = speed_rows(WORK, 1.6, Options())
    assert (row.baseline, row.target_ratio, row.reached) == (40 / 1.9, 0.9, True)


def test_without_a_file_restarts_are_skipped_with_a_reason(monkeypatch):
    monkeypatch.setattr(ranks, "start", lambda contender: [took(1.0)] * 2)
    rows = ranks.run(Options(quick=True))
    skipped = [row for row in rows if math.isnan(row.value)]
    assert [row.params["skipped"] for row in skipped] == ["needs a file: --data"]
    assert sum(row.target_ratio is not None for row in rows) == 3
