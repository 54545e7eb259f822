"""A plan of a graph on a GPU: the batches of the same graph on the CPU, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.device_batches import assert_on, assert_same_but_for_padding
from helpers.devices import apart, device_of, for_each_gpu, opened
from helpers.emulator.tensors import watching
from helpers.made_plans import plan_of
from helpers.made_streams import made_events
from tgflow.cache import cached
from tgflow.graph import TemporalGraph
from tgflow.plan import Loader
from tgflow.plan.negatives import FixedNegatives
from tgflow.plan.replay import ExperienceReplay
from tgflow.tables import FeatureTable

EVENTS = made_events(240)


@pytest.mark.parametrize("gpu", [apart])
@pytest.mark.parametrize("placement", [None, "device", "uva"])
@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("changes", [{}, {"visibility": "batch", "with_memory": False}])
def test_the_host_waits_for_nothing(
    gpu: str, placement: Any, is_cached: bool, changes: dict[str, Any]
) -> None:
    device = opened(gpu)
    tables = [
        FeatureTable(2, placement=placement, device=device) for _ in range(2 * bool(placement))
    ]
    if is_cached:
        tables = [cached(table, rows=30, device=device) for table in tables]
    if tables:
        tables[1].append(torch.rand(20, 2))
    edge_x, node_x = tables or (None, None)
    events = EVENTS if placement else made_events(120, x_dim=0)
    graph = TemporalGraph.from_events(events, edge_x=edge_x, node_x=node_x, device=device)
    plan = plan_of(graph, replay=ExperienceReplay(ratio=0.5), **changes)
    with watching() as watch:
        for index in range(0, 12, 4):
            plan.batch(0, index)
    assert watch.waits == []


def test_a_cache_that_is_planned_on_the_host_is_refused() -> None:
    cache = cached(FeatureTable(2), rows=30, policy="belady")
    graph = TemporalGraph.from_events(EVENTS[:40], edge_x=cache, device=opened("emulated"))
    with pytest.raises(ValueError, match=r"a GPU that samples tells no host.*policy=\"lru\""):
        plan_of(graph)


@for_each_gpu
def test_parts_and_given_negatives_are_those_of_the_cpu_made_there_or_copied(gpu: str) -> None:
    """Three negatives for every other event, and one for those between."""
    counts = torch.tensor([3, 1] * 20)
    start = torch.tensor([0, *counts.cumsum(0)])
    fixed = FixedNegatives(20, start, EVENTS.dst[:80])
    device = device_of(gpu)

    def parts(graph: TemporalGraph, **where: Any) -> Loader:
        plan = plan_of(graph, negatives=fixed, batch_size=20, start=20, stop=50)
        tasks = [(0, part.index, part) for part in plan.parts(30, with_storing=True)]
        return Loader.of_tasks(plan, tasks, **where)

    here = TemporalGraph.from_events(EVENTS[:100])
    there = TemporalGraph.from_events(EVENTS[:100], device=opened(gpu))
    expected = list(parts(here))
    assert [batch.num_new for batch in expected] == [7, 7, 6, 20, 7, 3, 10]
    for graph in (there, here):
        for found, exact in zip(parts(graph, device=device), expected, strict=True):
            assert_on(device.device, found)
            assert_same_but_for_padding(found, exact)
            assert exact.negative_mask is not None
            assert torch.equal(found.negative_mask, exact.negative_mask)  # type: ignore[arg-type]
