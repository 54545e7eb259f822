"""Batches through a planned cache: as without one, whatever window, threads or failures."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.effort import cases
from helpers.made_plans import plan_of
from helpers.made_streams import made_events, small_tgn
from tgflow.cache import CachedTable, ScheduleMismatch, cached
from tgflow.graph import TemporalGraph
from tgflow.plan import BatchError, Loader, Plan
from tgflow.plan import loader as planner
from tgflow.tables import FeatureTable
from tgflow.train.continual import ContinualTrainer

pytestmark = pytest.mark.timeout(60)
EVENTS = made_events(400)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    until = time.monotonic() + 10
    while any(t.name.startswith("tgflow-loader") for t in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def graph_with(rows: int) -> tuple[TemporalGraph, CachedTable]:
    cache = cached(FeatureTable(2), rows=rows, policy="belady")
    return TemporalGraph.from_events(EVENTS, edge_x=cache), cache


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches planners know whenever they plan one."""
    sizes: list[int] = []
    original = planner.BeladyPlanner.plan

    def noted(self: Any) -> Any:
        sizes.append(len(self))
        return original(self)

    monkeypatch.setattr(planner.BeladyPlanner, "plan", noted)
    return sizes


def test_auto_knows_more_and_more_until_it_is_enough_or_takes_too_much(
    monkeypatch: pytest.MonkeyPatch, known: list[int]
) -> None:
    for rows, room in ((1000, 1 << 20), (2, 1 << 20), (100, 0)):
        known.clear()
        monkeypatch.setattr(planner, "MIN_WINDOW_BYTES", room)
        list(Loader(plan_of(graph_with(rows)[0]), num_threads=0))
        assert len(known) == 40
        if (rows, room) == (1000, 1 << 20):
            assert known == [*range(16, 29), *range(27, 0, -1)]
        else:
            assert max(known) < 16


@pytest.mark.parametrize("num_threads", [0, 2])
def test_what_others_put_into_the_cache_is_a_mismatch(num_threads: int) -> None:
    graph, cache = graph_with(40)
    batches = iter(Loader(plan_of(graph), 3, num_threads=num_threads, lookahead=20))
    next(batches)
    cache.restore(cache.snapshot())  # as it is: nothing happens
    cache.truncate(5)
    with pytest.raises((ScheduleMismatch, BatchError), match=r"batch \d+ of epoch 3.* id \d+"):
        list(batches)


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("broken", cases([0, 5, 33], [5]))
def test_a_failure_comes_in_its_place(
    num_threads: int, broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Plan.pending

    def draft(self: Plan, epoch: int, index: int) -> Any:
        if index == broken:
            raise OSError("the disk is gone")
        return original(self, epoch, index)

    monkeypatch.setattr(Plan, "pending", draft)
    batches = iter(Loader(plan_of(graph_with(40)[0]), num_threads=num_threads, lookahead=16))
    assert [next(batches).index for _ in range(broken)] == list(range(broken))
    with pytest.raises(BatchError, match=f"batch {broken} of epoch 0 failed: the disk is gone"):
        next(batches)


def test_a_live_stream_has_no_future_to_plan_for() -> None:
    graph = TemporalGraph(node_x=cached(FeatureTable(2), rows=4, policy="belady"))
    with pytest.raises(ValueError, match=r"node_x has policy=.* no future to know; use"):
        ContinualTrainer(small_tgn(), graph)
