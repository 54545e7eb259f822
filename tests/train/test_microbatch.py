"""Micro-batches are the same however the stream is cut, and no event is left out."""

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
