"""Sampling from shards through their owners matches one graph with everything."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.ranks import Growth, growths, in_threads, some_queries
from helpers.strategies import samplers
from tgflow.base.peers import RanksDisagree
from tgflow.graph.sampling import Frontier, Sampler
from tgflow.graph.sampling.expand import distinct
from tgflow.graph.sampling.hops import hop_by_hop, walk_here
from tgflow.ranks.sharded_sampling import ShardedSampler

GROWTH = Growth("undirected", [("append", 60), ("append_late", 9), ("append", 20)], 4)


def roots_of(graph, rank, batch, size, each):
    """Return the queries of a rank's batch, with a cutoff each if `each`."""
    nodes, t, before = some_queries(size, graph.num_events, 100 * batch + rank)
    return Frontier(nodes, t, before if each else None)


def assert_equal(found, expected):
    assert torch.equal(found.roots, expected.roots)
    pairs = [*zip(found.frontiers, expected.frontiers, strict=True)]
    for one, other in [*pairs, *zip(found.blocks, expected.blocks, strict=True)]:
        for name in (field.name for field in fields(one)):
            left, right = getattr(one, name), getattr(other, name)
            assert (left is None) == (right is None), name
            assert left is None or torch.equal(left, right), name


@settings(max_examples=tries(120, 25), deadline=None)
@given(
    growth=growths(),
    world=st.integers(1, 4),
    turn=st.integers(1, 8),
    fanouts=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    sampler=samplers(),
    relations=st.none() | st.sets(st.integers(0, 2)),
    each=st.booleans(),
    dedup=st.booleans(),
    sizes=st.lists(st.integers(0, 12), min_size=4, max_size=4),
)
def test_answers_of_shard_owners_match_the_whole_graph(
    growth, world, turn, fanouts, sampler, relations, each, dedup, sizes
):
    """Both visibilities: a cutoff for each query, or one for the batch."""
    whole = growth.whole()
    hows = [
        {"key": 2**64 - 1 - batch, "dedup": dedup, "by_time": batch % 2 == 0,
         "as_of": None if each else whole.num_events - 3 * batch,
         "since": min(2 * batch, whole.num_events)}
        for batch in range(turn)
    ]  # fmt: skip

    def roots(rank, batch):
        queries = roots_of(whole, rank, batch, sizes[rank], each)
        return distinct(queries, None)[0] if dedup else queries

    def work(peers):
        graph = growth.shard(peers.shard)
        asking = ShardedSampler(graph, peers, sampler, relations=relations)
        return asking.walk(
            hop_by_hop(graph.seconds_per_tick, None, roots(peers.rank, batch), fanouts, **how)
            for batch, how in enumerate(hows)
        )

    for rank, batches in enumerate(in_threads(world, work)):
        assert len(batches) == turn
        for batch, found in enumerate(batches):
            walk = hop_by_hop(
                whole.seconds_per_tick, None, roots(rank, batch), fanouts, **hows[batch]
            )
            assert_equal(found, walk_here(whole, walk, sampler, relations))


def asked_by(peers, graph, sizes, fanouts=(3,), sampler=None):
    """Sample the hops of one batch of `sizes[rank]` queries as of all events."""
    roots = roots_of(graph, peers.rank, 0, sizes[peers.rank], each=False)
    walk = hop_by_hop(1.0, None, roots, fanouts, key=5, as_of=None, since=0, dedup=False)
    return ShardedSampler(graph, peers, sampler or Sampler.uniform()).walk([walk])[0]


def test_shard_owner_that_is_behind_raises():
    def work(peers):
        steps = GROWTH.steps[: 2 if peers.rank == 1 else 3]
        graph = Growth("undirected", steps, 4).shard(peers.shard)
        return asked_by(peers, graph, [5, 5])

    with pytest.raises(
        RanksDisagree, match=r"rank 0 requested neighbors as of 89 events, but rank 1 has .* 69;"
    ):
        in_threads(2, work)
