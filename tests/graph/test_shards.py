"""Graph shards, one per rank, together match the whole graph."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.devices import for_each_device, opened, sample_neighbors
from helpers.effort import cases, tries
from helpers.ranks import growths, some_queries
from helpers.strategies import graph_events, samplers
from tgflow import NO_NODE, Sampler, TemporalGraph
from tgflow.base.peers import Shard
from tgflow.cuda import store_writes

COLUMNS = ("nodes", "t", "eid", "count")
SPREAD = graph_events((1, 40, 1), (40, 1, 2), (40, 40, 3), (2, 63, 4), (65, 104, 5))
"""Nodes 1, 2, 65 belong to the first of two ranks, nodes 40, 63, 104 to the second."""


@for_each_device
def test_node_of_another_rank_is_refused(device):
    graph = TemporalGraph.from_events(SPREAD, device=opened(device), shard=Shard(0, 2))
    t = torch.full((3,), 9)
    with pytest.raises(ValueError, match=r"node 40 is with rank 1 of 2, and this graph has .* 0's"):
        sample_neighbors(graph, Sampler.recent(), torch.tensor([1, 40, 63]), t, 2)
    found = sample_neighbors(graph, Sampler.recent(), torch.tensor([NO_NODE, 3, 2**40]), t, 2)
    assert found.count.tolist() == [0, 0, 0]  # padding has no owner, unknown nodes do


@for_each_device
@pytest.mark.parametrize("small", cases([True, False], [True]))
@settings(max_examples=tries(40, 8), deadline=None)
@given(
    growth=growths(),
    world=st.integers(2, 5),
    sampler=samplers(),
    k=st.integers(1, 4),
    relations=st.none() | st.sets(st.integers(0, 2)),
    seed=st.integers(0, 2**16),
)
def test_shards_together_match_the_whole_graph(
    device, small, growth, world, sampler, k, relations, seed
):
    """After any appends, deletions and retention, shard counts sum to the whole graph's, and
    queries match the whole graph, with and without a cutoff per query."""
    with pytest.MonkeyPatch.context() as patch:
        if not small:
            patch.setattr(store_writes, "SMALL_PAIRS", 0)
        check_shards(device, growth, world, sampler, k, relations, seed)


def check_shards(device, growth, world, sampler, k, relations, seed):
    whole = TemporalGraph(growth.direction)
    counted = growth.grow(whole)
    nodes, t, before = some_queries(60, whole.num_events, seed)
    options = {"key": seed, "relations": relations}
    graphs = [
        TemporalGraph(growth.direction, device=opened(device), shard=Shard(rank, world))
        for rank in range(world)
    ]
    parts = [growth.grow(graph) for graph in graphs]
    assert [sum(each) for each in zip(*parts, strict=True)] == counted
    entries = [graph.stats().num_entries for graph in graphs]
    assert sum(entries) == whole.stats().num_entries
    for graph in graphs:
        rows = graph.shard.owns(nodes).nonzero().squeeze(1)
        for limits in (None, before):
            expected = sample_neighbors(whole, sampler, nodes, t, k, as_of=limits, **options)
            found = sample_neighbors(
                graph, sampler, nodes[rows], t[rows], k, rows=rows,
                as_of=None if limits is None else limits[rows], **options,
            )  # fmt: skip
            for name in COLUMNS:
                assert torch.equal(getattr(found, name), getattr(expected, name)[rows]), name
