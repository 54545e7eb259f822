"""Training through a cache: the same losses, bit for bit, as without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.effort import cases
from helpers.made_streams import made_events, small_tgat, small_tgn
from helpers.records import Losses
from tgflow.cache import CachedTable, cached
from tgflow.cache.contents import POLICIES, Policy
from tgflow.graph import TemporalGraph
from tgflow.tables import FeatureTable
from tgflow.train.config import OfflineConfig
from tgflow.train.offline import OfflineTrainer

EVENTS = made_events(280)
NODE_X = torch.randn(25, 3, generator=torch.Generator().manual_seed(1))
"""Not of all nodes: the last 7 have no row."""
MODELS = {
    "tgn": lambda: small_tgn(node_x_dim=3),
    "tgat": lambda: small_tgat(node_x_dim=3),
}
CAPACITIES = {"none": (0, 0), "one": (1, 1), "some": (50, 9), "all": (280, 25)}
"""Of the caches: rows of edges, rows of nodes."""


def table_of(placement: Any, rows: Tensor) -> FeatureTable:
    """A table that begins with `rows`; on disk, in a file that goes with it."""
    return FeatureTable.from_tensor(rows, placement=placement)


def graph_through(
    placement: str, policies: tuple[Policy, Policy], capacities: tuple[int, int]
) -> tuple[TemporalGraph, list[CachedTable]]:
    """A graph of no events, its edges' and nodes' features each behind a cache of its own."""
    caches = [
        cached(table_of(placement, rows), rows=capacity, policy=policy)
        for rows, policy, capacity in zip(
            (torch.empty(0, 2), NODE_X), policies, capacities, strict=True
        )
    ]
    return TemporalGraph(edge_x=caches[0], node_x=caches[1]), caches


def trained_offline(model: str, graph: TemporalGraph, num_threads: int = 1) -> list[Any]:
    config = OfflineConfig(
        batch_size=20, learning_rate=1e-2, epochs=2, mrr_negatives=3, num_threads=num_threads
    )
    losses = Losses()
    result = OfflineTrainer(MODELS[model](), graph, config, losses).fit()
    timeless = {
        name: value
        for name, value in result.items()
        if not any(word in name for word in ("seconds", "per_second", "overhead"))
    }
    return [*losses.seen, timeless]


@pytest.fixture(scope="module", params=MODELS)
def uncached(request: pytest.FixtureRequest) -> tuple[str, list[Any]]:
    """A model's name, and what training it gives without a cache."""
    graph = TemporalGraph.from_events(EVENTS, node_x=FeatureTable.from_tensor(NODE_X))
    return request.param, trained_offline(request.param, graph)


@pytest.mark.parametrize("capacities", cases(CAPACITIES, ["none", "some"]))
@pytest.mark.parametrize(
    "policies",
    cases(
        [*((policy, policy) for policy in POLICIES), ("lru", "belady"), ("belady", "lru")],
        [("belady", "belady"), ("lru", "belady")],
    ),
)
def test_offline_training_does_not_change_with_caches_and_threads(
    uncached: tuple[str, list[Any]], policies: tuple[Policy, Policy], capacities: str
) -> None:
    model, expected = uncached
    placement = "disk" if capacities == "some" else "auto"
    graph, caches = graph_through(placement, policies, CAPACITIES[capacities])
    graph.append(EVENTS)
    assert trained_offline(model, graph, num_threads=0 if capacities == "none" else 2) == expected
    for cache in caches:
        if "static" not in policies:
            assert (cache.counters.hits == 0) == (capacities == "none")
        cache.close()
