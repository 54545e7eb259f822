"""The benchmark of ranks at tiny sizes: who takes part, and what its rows are held to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks import ranks
from benchmarks.rank_restart import recoveries
from benchmarks.rank_work import Work, WorkFigures, measure
from benchmarks.ranks import RankContender, cpu_row, speed_rows, start
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
def test_ranks_may_sample_from_shards():
    work = Work("tgn", 5, 2, 1, 24, dim=4, shards=True)  # they are up to 8 micro-batches ahead
    first, second = in_world(2, measured, work)
    assert first.bytes["queries"] > 0
    assert second.bytes["answers"] > 0
    assert 0 < first.calls["answers"] < 24
    assert first.waits["queries"] > 0


@pytest.mark.slow
def test_a_stream_that_is_handed_over_one_by_one_is_asked_for_so():
    work = Work("tgn", 5, 2, 0, 16, dim=4, shards=True, handed=1)
    first, _ = in_world(2, measured, work)
    assert first.calls["answers"] >= 15  # one a micro-batch; none is for the first


@pytest.mark.slow
def test_ranks_learn_on_after_each_kill(tmp_path):
    events = write_events(tmp_path / "events.csv", 40_000)
    assert all(0 < seconds < 60 for seconds in recoveries(events, 2))


def test_ranks_may_have_the_memory_of_their_own_nodes():
    first, second = in_world(2, measured, Work("tgn", 20, 2, 0, 3, dim=4, memory_shards=True))
    assert first.calls["memory"] == second.calls["memory"] == 3
    assert first.bytes["memory rows"] > 0
    assert "rows" not in second.bytes


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
    row, alone, threads, beside, calls, gradient, _ = speed_rows(WORK, 1.4, Options())
    assert (row.value, row.baseline, row.target_ratio) == (20.0, 40 / 3, 1.4)
    assert row.reached
    assert [each.value for each in (alone, threads, beside)] == [40 / 3, 40 / 3, 40 / 1.5]
    assert (calls.value, calls.target, calls.reached) == (2, 2, True)
    assert gradient.value == 3.0
    control = 1.9  # the machine has no more to give: below 1.8 times one process
    row, *_ = speed_rows(WORK, 1.6, Options())
    assert (row.baseline, row.target_ratio, row.reached) == (40 / 1.9, 0.9, True)
    assert math.isclose(cpu_row(WORK, 0.65, Options()).ratio, 1.5)


def test_what_a_rank_sends_is_compared_with_as_many_events_each(monkeypatch):
    began = []

    def made(contender):
        work = contender.work
        began.append((contender.world, work.batch, work.slices))
        sent = {"gradient": 4 - 4 // contender.world, "rows": 1}
        return [replace(took(1.0), bytes=sent)] * contender.world

    monkeypatch.setattr(ranks, "start", made)
    row = ranks.growth_row(WORK, Options())
    assert began == [(2, 40, 2), (4, 80, 4)]
    assert (row.value, row.target, row.reached) == (4 / 3, 1.6, True)
    assert (row.params["ranks"], row.params["memory"]) == (4, "replicated")


def test_what_is_not_there_is_skipped_with_a_reason(monkeypatch):
    asked = replace(took(1.0), calls={"queries": 2, "answers": 2})
    asked.waits.update({"queries": 0.5, "answers": 0.5})
    asked.bytes.update({"rows": 1, "memory rows": 10})
    monkeypatch.setattr(ranks, "start", lambda contender: [asked] * 2)
    rows = ranks.run(Options(quick=True))
    skipped = [row for row in rows if math.isnan(row.value)]
    assert [row.params["skipped"] for row in skipped] == ["needs a file: --data"]
    assert sum(row.target_ratio is not None for row in rows) == 7
    shares = [row for row in rows if row.name == "ranks, replicated over sharded memory"]
    assert [(row.value, row.params["ranks"], row.reached) for row in shares] == [
        (0.1, 2, True),
        (0.1, 4, True),
    ]
