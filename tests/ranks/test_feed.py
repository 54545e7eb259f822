"""Rank 0 reads the stream; the others receive its events in the same segments, and its end."""

import os
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.effort import cases
from helpers.worlds import in_world, run_apart
from tgflow.graph.events import COLUMNS, MICRO_BATCH_END, EventBatch, NewNodes, concat, empty_events
from tgflow.ranks.broadcast import MOST_BATCHES, Feed, Followed, LeaderFailed, segments
from tgflow.ranks.control import Order

WORLDS = cases([2, 3, 4], quick=[3])


def events(size, *, x_dim=None, labels=False):
    """Events of growing time, among a growing number of nodes."""
    rows = torch.arange(size)
    x = None if x_dim is None else torch.rand(size, x_dim, generator=torch.manual_seed(1))
    return EventBatch(
        rows // 2,
        rows * 3,
        rows * 7,
        x,
        rows % 4 if labels else None,
        relation=rows % 3 if labels else None,
    )


def cut(whole, sizes):
    """Return a stream in batches of these sizes, and the rest."""
    start = 0
    for size in sizes:
        yield whole[start : start + size]
        start += size
    yield whole[start:]


def same(left, right):
    for name in COLUMNS:
        ours, theirs = getattr(left, name), getattr(right, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            assert torch.equal(ours, theirs), name


class NoSource:
    """A stream that must not be opened."""

    def __iter__(self):
        raise AssertionError("a follower opened the source")


def taken(peers, stream, batch_size=10, **options):
    """Return the events this rank receives of rank 0's stream."""
    if peers.rank == 0:
        with Feed(peers, stream, batch_size, **options) as feed:
            return list(feed)
    with Followed(peers, "s") as followed:
        return list(followed)


# --- segments


@given(st.integers(0, 200), st.lists(st.integers(0, 120), max_size=6), st.integers(1, 30))
def test_segments_are_whole_micro_batches_for_any_input_batches(size, sizes, batch_size):
    whole = events(size, x_dim=2)
    found = list(segments(cut(whole, sizes), batch_size))
    same(concat(found) if found else empty_events(2), whole)
    for segment in found[:-1]:
        assert len(segment) % batch_size == 0
    for segment in found:
        assert 0 < len(segment) <= MOST_BATCHES * batch_size


def test_early_end_of_a_micro_batch_starts_the_next():
    whole = events(40)
    stream = [whole[:13], MICRO_BATCH_END, MICRO_BATCH_END, whole[13:25], whole[25:]]
    found = list(segments(stream, 10))
    ends = [at for at, batch in enumerate(found) if batch is MICRO_BATCH_END]
    assert [len(batch) for batch in found] == [10, 3, 0, 0, 10, 10, 7]
    assert ends == [2, 3]
    same(concat([batch for batch in found if batch is not MICRO_BATCH_END]), whole)


# --- a world


def take_any(peers, sizes):
    for columns in ({}, {"x_dim": 3}, {"labels": True}, {"x_dim": 0, "labels": True}):
        whole = events(95, **columns)
        stream = cut(whole, sizes) if peers.rank == 0 else NoSource()
        same(concat(taken(peers, stream)), whole)


@pytest.mark.parametrize("sizes", cases([[], [1, 30, 3], [5] * 19], quick=[[1, 30, 3]]))
@pytest.mark.parametrize("world", WORLDS)
def test_all_ranks_receive_the_same_segments(world, sizes):
    in_world(world, take_any, sizes)


def with_nodes(batches, rows):
    """Attach to each batch the feature rows of its new nodes."""
    known = 0
    for batch in batches:
        stop = max(known, 1 + int(batch.dst.max())) if len(batch) else known
        new = NewNodes(known, rows[known:stop]) if stop > known else None
        known = stop
        yield replace(batch, new_nodes=new)


def take_nodes(peers, sizes):
    whole, rows = events(95), torch.rand(300, 2, generator=torch.manual_seed(1))
    stream = with_nodes(cut(whole, sizes), rows) if peers.rank == 0 else NoSource()
    found, stop = taken(peers, stream), 0
    for segment in found:
        if segment.new_nodes is not None:
            assert segment.new_nodes.start == stop, "each comes once"
            stop = segment.new_nodes.stop
            assert torch.equal(segment.new_nodes.x, rows[segment.new_nodes.start : stop])
        assert int(segment.dst.max()) < stop
    same(concat(found), whole)
    return stop


@pytest.mark.parametrize("sizes", cases([[], [20, 0, 30], [5] * 19], quick=[[20, 0, 30]]))
def test_features_of_nodes_come_with_the_segments_that_mention_them(sizes):
    assert in_world(3, take_nodes, sizes) == [1 + 94 * 3] * 3


def take_idle(peers, seconds):
    def stream():
        yield events(10)
        time.sleep(seconds)
        yield events(10)

    source = stream() if peers.rank == 0 else NoSource()
    assert len(concat(taken(peers, source, timeout=0.3))) == 20


def test_idle_stream_outlives_the_timeout():
    in_world(2, take_idle, 1.5, timeout=0.5)


class SourceGone(OSError):
    """Error raised by a source."""


def take_failing(peers):
    def stream():
        yield from cut(events(25), [20])
        raise SourceGone("the broker is gone")

    found = []
    source = stream() if peers.rank == 0 else NoSource()
    feed = Feed(peers, source, 10) if peers.rank == 0 else Followed(peers, "s")
    with feed, pytest.raises((SourceGone, LeaderFailed), match="the broker is gone") as error:
        found.extend(map(len, feed))
    assert found == [20], "what was complete before comes first"
    if peers.rank:
        assert error.value.kinds[:2] == ["SourceGone", "OSError"]


def test_stream_error_ends_all_ranks_with_the_same_cause():
    in_world(3, take_failing)


def ask_while_idle(peers):
    """Rank 1 asks for a stop while no events arrive."""
    if peers.rank:
        with Followed(peers, "s", request=lambda: Order.STOP) as followed:
            return [*followed]
    asked = []

    def stream():
        while not asked:
            time.sleep(0.01)
        yield from ()

    with Feed(peers, stream(), 10, on_requests=asked.append, timeout=0.3) as feed:
        assert [*feed] == []
    return asked[0]


def test_requests_reach_rank_0_while_no_events_arrive():
    assert in_world(3, ask_while_idle) == [[Order.NONE, Order.STOP, Order.STOP], [], []]


def lose_follower(peers):
    if peers.rank == 1:
        os._exit(9)
    errors = []
    with Feed(peers, iter([]), 10, lost=errors.append, timeout=0.3):
        while not errors:
            time.sleep(0.01)
    return str(errors[0])


def test_rank_that_exits_during_an_idle_stream_is_detected():
    leader, follower = run_apart(2, lose_follower, joined=20.0)
    assert follower.code == 9
    assert "rank 1" in leader.result, leader.error
