"""Caches between a trainer's passes: an evaluation leaves them as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tgflow.cache import cached
from tgflow.graph import TemporalGraph
from tgflow.tables import table
from tgflow.train import caches


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "belady"])
def test_an_evaluation_leaves_a_cache_as_it_was_and_the_next_rows_in_it(policy: Any) -> None:
    cache = cached(table(torch.randn(100, 2)), rows=10, policy=policy)
    graph = TemporalGraph(node_x=cache)
    cache.gather(torch.arange(10))
    before = cache.contents()
    with caches.evaluation_apart(graph, dict):
        cache.gather(torch.arange(40, 60))
    assert torch.equal(cache.contents(), before)  # which belady does not change by gathers
    with caches.evaluation_apart(graph, lambda: {"node_x": torch.arange(7, 13)}):
        cache.gather(torch.arange(40, 60))
    assert policy == "belady" or set(range(7, 13)) <= set(cache.contents().tolist())
