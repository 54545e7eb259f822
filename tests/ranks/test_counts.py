"""Counts sharded over ranks match those of one process bit for bit, in a share of its memory."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.plans import EVERY_LIST, OF_SOURCE, numbers_of, plan_of
from helpers.ranks import STRIDE, in_threads, spread_events
from helpers.strategies import event_lists, skewed_events
from helpers.worlds import in_world
from tgflow import EventBatch, TemporalGraph
from tgflow.base.peers import RanksDisagree, Shard
from tgflow.graph.counts import LOOP, Count
from tgflow.graph.events import concat
from tgflow.nn.groups import PAIR_GROUPS
from tgflow.nn.groups import numbers_of as numbers_of_groups
from tgflow.plan import CountHistory, NegativeSampler
from tgflow.plan import count_lookup as whole
from tgflow.plan.count_lookup import CountedPairs
from tgflow.plan.negatives import PairHistory
from tgflow.ranks import sharded_counts as sharded
from tgflow.ranks.sharded_counts import ShardedCounts, read_pairs
from tgflow.run.machine import anonymous_bytes

NODES = 7
EVERY_NUMBER = [
    *numbers_of(EVERY_LIST),
    Count("pair").rank,
    Count("dst").rank,
    *(Count(of).since for of in OF_SOURCE),
    LOOP,
]


def some_pairs(events, stop, seed, size, m):
    """Return pairs of any known and unknown nodes, as of any position and time up to `stop`."""
    generator = torch.Generator().manual_seed(seed)

    def ints(high, *shape):
        return torch.randint(0, high, shape, generator=generator)

    t = events.t[ints(len(events), size)] + ints(3, size) if len(events) else ints(3, size)
    asked = EventBatch.checked(
        src=STRIDE * ints(NODES, size), dst=STRIDE * ints(NODES, size), t=t,
        relation=ints(3, size) if seed % 2 else None,
    )  # fmt: skip
    own = STRIDE * ints(NODES, size, m) if seed % 3 else None
    return CountedPairs(asked, own, STRIDE * ints(NODES, size, m), ints(stop + 1, size), stop)


def answers(events, numbers, turns, peers=None):
    """Return the answers of a rank, or of one process for the last rank, by turn and batch."""
    graph = TemporalGraph(shard=None if peers is None else peers.shard)
    graph.append(events)
    history, found = CountHistory(graph, numbers), []
    for turn in turns:
        if peers is None:
            found.append([history.answer(**pairs._asdict()) for ranks in turn for pairs in ranks])
        else:
            found.append(ShardedCounts(history, peers).answer(turn[peers.rank]))
    return found


@pytest.fixture(params=[1 << 20, 1])
def max_keys(request, monkeypatch):
    """Keys of a part: all, or less than there are."""
    native = partial(whole.EventCounts, max_keys=request.param)
    monkeypatch.setattr(whole, "EventCounts", native)
    monkeypatch.setattr(sharded, "_MOST_EVENTS", 5)
    monkeypatch.setattr(sharded, "_MOST_PAIRS", 9)
    return request.param


@settings(max_examples=tries(60, 12), deadline=None)
@given(
    events=event_lists(max_events=40, max_node=NODES - 2, relations=True),
    world=st.integers(1, 4),
    stops=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    sizes=st.lists(st.integers(0, 6), min_size=4, max_size=4),
    m=st.integers(0, 3),
)
def _check_ranks(events, world, stops, sizes, m):
    events = spread_events(events)
    turns = [
        [
            [some_pairs(events, min(stop, len(events)), 7 * i + rank, sizes[rank], m)] * (1 + i)
            for rank in range(world)
        ]
        for i, stop in enumerate(sorted(stops))
    ]
    expected = answers(events, EVERY_NUMBER, turns)
    ranks = in_threads(world, partial(answers, events, EVERY_NUMBER, turns))
    for turn, wanted in enumerate(expected):
        found = [each for rank in ranks for each in rank[turn]]
        assert len(found) == len(wanted)
        assert all(x.equal(y) for x, y in zip(found, wanted, strict=True))


def test_counts_of_shards_match_one_process(max_keys):
    """Of every kind, with caps of keys, in turns that read on, from several batches."""
    _check_ranks()


@settings(max_examples=tries(60, 20), deadline=None)
@given(
    events=event_lists(max_events=40, max_node=NODES - 2).filter(len),
    world=st.integers(1, 4),
    stops=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    replace=st.booleans(),
)
def test_pairs_of_shards_match_one_process(events, world, stops, replace):
    """Drawn as of any position, in turns that read on; there are other destinations."""
    first = EventBatch(*torch.tensor([[0, 1], [1, 2]]), events.t[:1].expand(2).contiguous())
    events = spread_events(concat([first, events]))
    ends = sorted(min(2 + stop, len(events)) for stop in stops)
    drawn = NegativeSampler(historical=2, replace=replace)

    def work(peers):
        graph, found = TemporalGraph(shard=peers.shard), []
        graph.append(events)
        history = PairHistory(graph.log, shard=peers.shard)
        for stop in ends:
            read_pairs(history, peers, stop)
            asked = graph.log.read(max(0, stop - 8), stop)
            start = torch.arange(len(asked)) * stop // 8
            some = drawn.draw(history, stop, asked.src, asked.dst, start=start, stop=stop)
            found.append((history.native.num_pairs(stop), some.src, some.dst, some.num_fallbacks))
        return found

    [expected] = in_threads(1, work)
    for found in in_threads(world, work):
        for (*numbers, fallbacks), (*wanted, others) in zip(found, expected, strict=True):
            assert (numbers[0], fallbacks) == (wanted[0], others)
            assert all(x.equal(y) for x, y in zip(numbers[1:], wanted[1:], strict=True))


def test_pairs_of_a_shard_are_read_by_all_ranks():
    graph = TemporalGraph(shard=Shard(0, 2))
    graph.append(spread_events(skewed_events(30, 5)))
    with pytest.raises(ValueError, match="pairs of a shard are read in steps, by all ranks"):
        PairHistory(graph.log, shard=graph.shard).upto(30, pairs=True)


def grown(peers):
    """Return the bytes of a rank's counts, and of memory that it took, after many small steps."""
    ends = torch.rand(2, 60_000, generator=torch.Generator().manual_seed(0)).pow(1.5) * 500
    events = EventBatch(*ends.long().unbind(0), torch.arange(60_000))
    graph = TemporalGraph(shard=peers.shard)
    history = CountHistory(graph, numbers_of_groups(PAIR_GROUPS))
    asking, start = ShardedCounts(history, peers), anonymous_bytes()
    for stop in range(1_000, len(events) + 1, 1_000):
        graph.append(events[stop - 1_000 : stop])
        asking.answer([some_pairs(events, stop, stop, 3, 1)])
    return history.nbytes, anonymous_bytes() - start


@pytest.mark.slow
def test_memory_of_a_rank_falls_with_the_world():
    """With every group of pair features; no node or key has most events."""
    [alone] = in_world(1, grown)
    for world in (2, 4):
        ranks = in_world(world, grown)
        assert max(counts for counts, _ in ranks) < 1.2 * alone[0] / world
        assert max(taken for _, taken in ranks) < 1.5 * alone[1] / world


def test_ranks_whose_batches_end_apart_disagree():
    events = spread_events(skewed_events(20, 5))

    def work(peers):
        turn = [some_pairs(events, 10 + peers.rank, 1, 2, 1)]
        return answers(events, EVERY_NUMBER, [[turn, turn]], peers)

    with pytest.raises(RanksDisagree, match=r"rank \d counts events 0 to 1\d, and rank \d 0 to"):
        in_threads(2, work)


def test_batch_of_a_shard_needs_the_counts_of_all_ranks():
    graph = TemporalGraph(shard=Shard(0, 2))
    graph.append(spread_events(skewed_events(30, 5)))
    plan = plan_of(graph, fanouts=(), with_nodes=False)
    assert plan.draws.roots(0, 1).counts is None
    with pytest.raises(ValueError, match="are sharded with the graph: ask all ranks together"):
        plan.batch(0, 1)
    with pytest.raises(ValueError, match="read in steps, by all ranks together"):
        plan.draws.counts.answer(**plan.draws.pairs_of(plan.draws.roots(0, 1))._asdict())
