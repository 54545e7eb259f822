"""Batches through a planned cache: as without one, whatever window, threads or failures."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

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
NODE_X = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))


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


def graph_with_both(
    edges: tuple[int, Any] | None, nodes: tuple[int, Any] | None
) -> tuple[TemporalGraph, dict[str, CachedTable]]:
    """A graph with edge and node features, each behind a cache of (rows, policy) or none."""
    edge_x, node_x = FeatureTable(2), FeatureTable.from_tensor(NODE_X)
    caches = {}
    if edges is not None:
        caches["edge_x"] = cached(edge_x, rows=edges[0], policy=edges[1])
    if nodes is not None:
        caches["node_x"] = cached(node_x, rows=nodes[0], policy=nodes[1])
    return TemporalGraph.from_events(
        EVENTS, **{"edge_x": edge_x, "node_x": node_x} | caches
    ), caches


@pytest.mark.parametrize("edges", [(50, "lru"), (50, "belady")])
def test_edges_and_nodes_have_caches_of_their_own(edges: Any) -> None:
    """Each is planned, or not, as if the other were not there."""
    nodes = (9, "belady")
    graph, caches = graph_with_both(edges, nodes)
    list(Loader(plan_of(graph), num_threads=2, lookahead=7))
    for name, cache in caches.items():
        if cache.policy == "lru":
            continue  # the order of threads decides
        alone, only = graph_with_both(
            edges if name == "edge_x" else None, nodes if name == "node_x" else None
        )
        list(Loader(plan_of(alone), num_threads=0, lookahead=7))
        assert cache.counters == only[name].counters
        assert torch.equal(cache.contents(), only[name].contents())


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
