"""Caches between a trainer's passes: after an evaluation, what the next begins with is back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tgflow.cache import CachedTable, cached
from tgflow.graph import TemporalGraph
from tgflow.tables import FeatureTable
from tgflow.train import caches


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
def test_after_an_evaluation_the_next_rows_are_back_that_were_held_before(policy: Any) -> None:
    cache, graph = ten_rows_held(policy)
    with caches.isolate_evaluation(graph, lambda: {"node_x": torch.arange(7, 13)}):
        cache.gather(torch.arange(40, 57))
    contents = set(cache.contents().tolist())
    assert contents & set(range(40)) == {7, 8, 9}  # of 7..12, asked for next, 10..12 were not held
    assert len(contents) == 10
    assert cache.counters.preloaded == 3


@pytest.mark.parametrize("policy", ["static", "belady"])
def test_an_evaluation_changes_nothing_where_gathers_admit_nothing(policy: Any) -> None:
    cache, graph = ten_rows_held(policy)
    before, counters = cache.contents(), cache.counters
    with caches.isolate_evaluation(graph, lambda: {"node_x": torch.arange(7, 13)}):
        cache.gather(torch.arange(40, 57))
    assert torch.equal(cache.contents(), before)
    assert cache.counters.preloaded == counters.preloaded


def ten_rows_held(policy: Any) -> tuple[CachedTable, TemporalGraph]:
    """A cache of ten rows in front of a graph's node features; it holds the first ten if it can."""
    cache = cached(FeatureTable.from_tensor(torch.randn(100, 2)), rows=10, policy=policy)
    if policy == "static":
        cache.preload(torch.arange(10))
    cache.gather(torch.arange(10))
    return cache, TemporalGraph(node_x=cache)
