"""The event log: order, validation, zero-copy reads."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import event_lists, graph_events
from tgflow.graph import TemporalGraph
from tgflow.graph.events import COLUMNS, EventBatch

OPTIONAL = {"relation": lambda t: t % 65_536, "label": lambda t: t * 3, "weight": torch.Tensor.abs}


@given(events=event_lists(), cut=st.integers(0, 40), names=st.sets(st.sampled_from([*OPTIONAL])))
def test_log_returns_appended_events(events, cut, names):
    columns = {name: OPTIONAL[name](events.t).to(COLUMNS[name].dtype) for name in names}
    events = EventBatch(events.src, events.dst, events.t, **columns)
    graph = TemporalGraph()
    log = graph.log
    assert graph.append(events[:cut]) == 0
    assert graph.append(events[cut:]) == min(cut, len(events))
    assert len(log) == len(events)
    for read in (log.read(0, len(log)), log.gather(torch.arange(len(events)))):
        for name in ("src", "dst", "t"):
            assert torch.equal(getattr(read, name), getattr(events, name))
        for name in OPTIONAL:
            if name in names and len(events):
                assert torch.equal(getattr(read, name), columns[name])
                eid = torch.arange(len(events) - 1, -1, -1)
                assert torch.equal(log.column(name, eid), columns[name].flip(0))
            elif len(events):
                assert getattr(read, name) is log.column(name, slice(None)) is None
    for t in {0, *events.t.tolist()}:
        assert log.position(t) == int((events.t < t).sum())
    assert log.t_last == (int(events.t[-1]) if len(events) else None)
    ends = events.src.tolist() + events.dst.tolist()
    assert log.num_nodes == max(ends, default=-1) + 1


def test_read_result_outlives_its_graph_and_later_appends():
    graph = TemporalGraph.from_events(graph_events((0, 1, 5)))
    read = graph.log.read(0, 1)
    for t in range(6, 3000):
        graph.append(graph_events((7, 8, t)))
    del graph
    assert (read.src.tolist(), read.dst.tolist(), read.t.tolist()) == ([0], [1], [5])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 1, 57), (2, 3, 60), (4, 5, 58)], "event 2 has t=58 but event 1 before it is at t=60"),
        ([(0, 1, 40)], "event 0 has t=40 but the log is at t=57; sort the batch or use a reorder"),
        ([(0, 2**31 - 1, 57)], "event 0 has dst=2147483647; node ids must be in .0, 2147483646."),
    ],
)
def test_rejected_batch_is_explained_and_changes_nothing(rows, message):
    graph = TemporalGraph.from_events(graph_events((0, 1, 57)))
    with pytest.raises(ValueError, match=message):
        graph.append(graph_events(*rows))
    log = graph.log
    assert (len(log), log.num_nodes, log.t_last) == (1, 2, 57)
