"""Evaluation restores the upcoming rows of a cache."""

from typing import Any

import pytest
import torch

from tgflow import TemporalGraph
from tgflow.graph.cache import cached
from tgflow.graph.tables import FeatureTable
from tgflow.train.caches import isolate_evaluation


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
