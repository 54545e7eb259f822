"""Made anomalies: which events they are, what is other of them, and what stays."""

import pytest
import torch

from helpers.made_streams import made_events
from tgflow.graph import TemporalGraph
from tgflow.tasks.injection import inject


@pytest.fixture
def graph():
    return TemporalGraph.from_events(made_events(200))


def columns_of(graph):
    events = graph.log.read(0, graph.num_events)
    return events.src, events.dst, events.t


def test_structural_anomalies_have_another_destination(graph):
    made, places = inject(graph, "structural", 0.1, start=100, seed=0)
    assert len(places) == 10
    assert int(places.min()) >= 100
    (src, dst, t), (other_src, other_dst, other_t) = columns_of(graph), columns_of(made)
    assert torch.equal(src, other_src)
    assert torch.equal(t, other_t)
    assert (dst != other_dst).nonzero().flatten().tolist() == places.tolist()
    assert set(other_dst.tolist()) <= set(dst.tolist())
    assert made.log.read(0, 200).label.nonzero().flatten().tolist() == places.tolist()
    assert made.edge_x is graph.edge_x


def test_temporal_anomalies_are_pairs_at_the_time_of_another(graph):
    made, places = inject(graph, "temporal", 0.2, start=100, seed=0)
    (src, dst, t), (other_src, other_dst, other_t) = columns_of(graph), columns_of(made)
    assert torch.equal(t, other_t)
    real = sorted(zip(src[places].tolist(), dst[places].tolist(), strict=True))
    moved = sorted(zip(other_src[places].tolist(), other_dst[places].tolist(), strict=True))
    assert real == moved
    rest = torch.ones(200, dtype=torch.bool)
    rest[places] = False
    assert torch.equal(src[rest], other_src[rest])
    assert torch.equal(dst[rest], other_dst[rest])


def test_too_few_events_are_refused(graph):
    with pytest.raises(ValueError, match="too few events"):
        inject(graph, "structural", 0.5, start=199, seed=0)
