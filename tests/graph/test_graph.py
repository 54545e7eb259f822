"""Appends to the graph are all or nothing."""

import pytest
import torch

from helpers.emulator.device import EmulatedDevice
from helpers.strategies import graph_events
from tgflow import EventBatch, TemporalGraph
from tgflow.graph.sampling import recent_neighbors
from tgflow.graph.tables import FeatureTable


def with_x(events, dim):
    return EventBatch(events.src, events.dst, events.t, torch.rand(len(events), dim))


def state(graph):
    rows = 0 if graph.edge_x is None else len(graph.edge_x)
    return graph.num_events, len(graph.log), graph.num_nodes, graph.stats().num_entries, rows


def test_graph_keeps_features_in_the_given_table():
    events = EventBatch(*torch.arange(12).view(3, 4), torch.arange(8.0).view(4, 2))
    table = FeatureTable(2, placement="uva", device=EmulatedDevice())
    graph = TemporalGraph(edge_x=table)
    graph.append(events)
    assert graph.edge_x is table
    assert torch.equal(table.read(0, 4), events.x)
    with pytest.raises(ValueError, match="empty table of float32 rows, got 4 rows of torch"):
        TemporalGraph(edge_x=table)
    with pytest.raises(ValueError, match="empty table of float32 rows, got 0 rows of torch"):
        TemporalGraph(edge_x=FeatureTable(2, torch.float16))
    with pytest.raises(ValueError, match="the table's width is 2, not 3"):
        TemporalGraph(edge_x_dim=3, edge_x=FeatureTable(2))


def test_features_follow_their_events():
    first, second = (with_x(graph_events((0, 1, t), (1, 2, t)), 3) for t in (5, 6))
    graph = TemporalGraph.from_events(first)
    assert graph.append(second) == 2
    neighbors = recent_neighbors(graph, torch.tensor([2]), torch.tensor([9]), 3)
    assert neighbors.eid.tolist() == [[3, 1, -1]]
    assert graph.edge_x is not None
    rows = graph.edge_x.gather(neighbors.eid)
    assert torch.equal(rows, torch.stack([second.x[1], first.x[1], torch.zeros(3)])[None])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            with_x(graph_events((0, 9, 6), (9, 3, 6)), 2),
            "node 9 is the source of event 1 but was a des",
        ),
        (with_x(graph_events((5, 5, 6)), 2), "node 5 is the destination of event 0"),
        (with_x(graph_events((0, 5, 6), (0, 6, 5)), 2), "event 1 has t=5"),
        (graph_events((0, 5, 6)), "edge features of width 2, the batch has 0"),
        (with_x(graph_events((0, 5, 6)), 3), "edge features of width 2, the batch has 3"),
    ],
)
def test_rejected_batch_changes_nothing(batch, message):
    graph = TemporalGraph("bipartite", edge_x_dim=2)
    graph.append(with_x(graph_events((0, 4, 5)), 2))
    before = state(graph)
    with pytest.raises(ValueError, match=message):
        graph.append(batch)
    assert state(graph) == before
    graph.append(with_x(graph_events((9, 5, 6)), 2))  # sides in rejected batches are forgotten
