"""Caches in training change no metric, and evaluation restores the upcoming rows."""

from typing import Any

import pytest
import torch

from helpers.effort import cases
from helpers.live_runs import Losses, untimed
from helpers.made_streams import made_events, small_tgn
from tgflow import OfflineConfig, OfflineTrainer, TemporalGraph
from tgflow.graph.cache import cached
from tgflow.graph.cache.contents import POLICIES
from tgflow.graph.tables import FeatureTable
from tgflow.train.caches import isolate_evaluation

EVENTS = made_events(280)
NODE_X = torch.randn(25, 3, generator=torch.Generator().manual_seed(1))
"""Rows of all nodes but the last 7."""
CAPACITIES = {"none": (0, 0), "one": (1, 1), "some": (50, 9), "all": (280, 25)}
"""Cache sizes: edge rows, node rows."""


def trained(graph: TemporalGraph, num_threads: int = 1) -> list[Any]:
    config = OfflineConfig(
        batch_size=20, learning_rate=1e-2, epochs=2, mrr_negatives=3, num_threads=num_threads
    )
    losses = Losses()
    result = OfflineTrainer(small_tgn(node_x_dim=3), graph, config, losses).fit()
    return [*losses.seen, untimed(result)]


@pytest.fixture(scope="module")
def uncached() -> list[Any]:
    return trained(TemporalGraph.from_events(EVENTS, node_x=FeatureTable.from_tensor(NODE_X)))


@pytest.mark.parametrize("capacity", cases(CAPACITIES, ["none", "some"]))
@pytest.mark.parametrize(
    "policies",
    cases(
        [*((policy, policy) for policy in POLICIES), ("lru", "belady"), ("belady", "lru")],
        [("belady", "belady"), ("lru", "belady")],
    ),
)
def test_training_does_not_change_with_caches_and_threads(
    uncached: list[Any], policies: tuple[Any, Any], capacity: str
) -> None:
    placement: Any = "disk" if capacity == "some" else "auto"
    edge_x, node_x = (
        cached(FeatureTable.from_tensor(rows, placement=placement), rows=size, policy=policy)
        for rows, size, policy in zip(
            (torch.empty(0, 2), NODE_X), CAPACITIES[capacity], policies, strict=True
        )
    )
    graph = TemporalGraph(edge_x=edge_x, node_x=node_x)
    graph.append(EVENTS)
    assert trained(graph, num_threads=0 if capacity == "none" else 2) == uncached
    for cache in (edge_x, node_x):
        if "static" not in policies:
            assert (cache.counters.hits == 0) == (capacity == "none")
        cache.close()


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "static", "belady"])
def test_cached_rows_are_restored_after_an_evaluation(policy: Any) -> None:
    cache = cached(FeatureTable.from_tensor(torch.randn(100, 2)), rows=10, policy=policy)
    if policy == "static":
        cache.preload(torch.arange(10))
    cache.gather(torch.arange(10))
    before, graph = cache.contents().tolist(), TemporalGraph(node_x=cache)
    with isolate_evaluation(graph, lambda: {"node_x": torch.arange(7, 13)}):
        cache.gather(torch.arange(40, 57))
    contents = cache.contents().tolist()
    if policy in ("static", "belady"):  # gathers admit nothing
        assert contents == before
        return
    # of 7 to 12, which come next, 10 to 12 were not held
    assert {row for row in contents if row < 40} == {7, 8, 9}
    assert len(contents) == 10
    assert cache.counters.preloaded == 3
