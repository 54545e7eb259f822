from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow.graph.events import EventBatch, concat
from tgflow.graph.ids import NodeIds
from tgflow.streams import playback, rebatch


class FakeClock:
    """A clock that advances only by sleeping or assignment."""

    def __init__(self, now=1000.0):
        self.now = now
        self.slept = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


class Listed:
    """A source of given batches."""

    num_events = None
    x_dim = 0

    def __init__(self, *times, unit="s"):
        self.unit = unit
        self.ids = NodeIds()
        self.batches = [events_at(t) for t in times]

    def __iter__(self):
        return iter(self.batches)


def events_at(t):
    nodes = torch.arange(len(t))
    return EventBatch(nodes, nodes + 100, torch.tensor(t, dtype=torch.int64))


def times(batches):
    return [batch.t.tolist() for batch in batches]


@pytest.mark.parametrize("speed", [None, float("inf")])
def test_replay_at_full_speed_yields_batches_unchanged(speed):
    source, clock = Listed([0, 5], [9]), FakeClock()
    assert list(playback(source, speed, clock=clock)) == source.batches
    assert clock.slept == []


def test_replay_waits_for_each_time_and_keeps_ties_together():
    clock, source = FakeClock(), Listed([10_000, 10_000, 14_000], [14_000, 20_000], unit="ms")
    assert times(playback(source, 2, clock=clock)) == [
        [10_000, 10_000],
        [14_000],
        [14_000],
        [20_000],
    ]
    assert clock.slept == [2.0, 3.0]


def test_replay_gives_a_slow_consumer_all_due_events():
    clock, seen = FakeClock(), []
    for batch in playback(Listed([0, 1, 2, 3, 4, 5]), 1, clock=clock):
        seen.append(batch.t.tolist())
        clock.now += 2.5
    assert seen == [[0], [1, 2], [3, 4, 5]]
    assert clock.slept == []


def test_replay_continues_if_a_wait_is_too_short_for_the_clock():
    clock = FakeClock(now=1e15)  # 1 ns more is the same float64
    assert times(playback(Listed([0, 1, 2], unit="ns"), 1, clock=clock)) == [[0, 1, 2]]


@given(st.lists(st.lists(st.integers(0, 50), max_size=6), max_size=5), st.floats(0.1, 100))
def test_replay_keeps_order_and_is_never_early(parts, speed):
    flat = sorted(t for part in parts for t in part)
    source, start = Listed(), 0
    for part in parts:
        source.batches.append(events_at(flat[start : start + len(part)]))
        start += len(part)
    clock, seen = FakeClock(), []
    for batch in playback(source, speed, clock=clock):
        if len(batch):
            assert clock.now >= 1000 + (int(batch.t[-1]) - flat[0]) / speed - 1e-6
        seen += batch.t.tolist()
    assert seen == flat


@pytest.mark.parametrize("speed", [0, -1.0, float("nan")])
def test_invalid_replay_speed_is_refused(speed):
    with pytest.raises(ValueError, match=r"speed must be more than 0, got .*full speed"):
        playback(Listed(), speed)


@given(st.lists(st.integers(0, 7), max_size=8), st.integers(1, 9))
def test_rebatch_cuts_to_one_size_and_keeps_every_event(sizes, size):
    whole = events_at(list(range(sum(sizes))))
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = [whole[a:b] for a, b in pairwise([0, *ends])]
    batches = list(rebatch(parts, size))
    assert torch.equal(concat(batches).t, whole.t)
    assert all(len(batch) == size for batch in batches[:-1])
    assert not batches or 1 <= len(batches[-1]) <= size


def test_rebatch_refuses_an_empty_size():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        rebatch([], 0)
