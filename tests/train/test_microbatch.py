"""Micro-batches are the same however the stream is cut, and no event is left out."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.made_streams import made_events, pieces
from tgflow.graph import TemporalGraph
from tgflow.train.plans import MicroBatcher


@given(
    size=st.integers(0, 50),
    sizes=st.lists(st.integers(0, 17), min_size=1, max_size=4).filter(any),
    batch_size=st.integers(1, 12),
    waiting=st.integers(0, 50),
)
def test_tasks_come_when_their_events_are_there_and_cover_all(size, sizes, batch_size, waiting):
    events = made_events(size)
    graph = TemporalGraph("undirected", 2)
    graph.append(events[: min(waiting, size)])
    feeder = MicroBatcher(graph, 0, 0, batch_size, updates=2)
    named = []
    for epoch, index in feeder.tasks(pieces(events[waiting:], *sizes)):
        named.append((epoch, index))
        stop = min((index + 1) * batch_size, size)
        assert graph.num_events >= stop
        if waiting < stop:
            assert graph.num_events == stop
    num = -(-size // batch_size)
    assert named == [(epoch, index) for index in range(num) for epoch in range(3)]
    assert torch.equal(graph.log.read(0, size).src, events.src)
    assert torch.equal(graph.edge_x.gather(torch.arange(size)), events.x)
    assert len(feeder.arrivals) == num


@given(
    sizes=st.lists(st.integers(0, 40), max_size=5),
    batch_size=st.integers(1, 9),
    most=st.integers(1, 4),
)
def test_turns_are_what_each_piece_completes(sizes, batch_size, most):
    """So all who take in the same pieces take the same turns, and none waits for the next piece."""
    events, ends = made_events(sum(sizes)), torch.tensor([0, *sizes]).cumsum(0).tolist()
    feeder = MicroBatcher(TemporalGraph("undirected", 2), 0, 0, batch_size, updates=1)
    came = []

    def stream():
        for start, stop in pairwise(ends):
            yield events[start:stop]
            came.append(stop)

    pending, seen = 0, 0
    for turn in feeder.turns(stream(), most):
        assert turn == [(epoch, pending + n) for n in range(len(turn) // 2) for epoch in range(2)]
        assert 1 <= len(turn) // 2 <= most
        pending += len(turn) // 2
        whole = min(pending * batch_size, len(events))
        is_last = whole % batch_size > 0 or len(came) == len(sizes)
        assert is_last or ends[len(came)] < whole <= ends[len(came) + 1]
        seen = whole
    assert seen == len(events)
