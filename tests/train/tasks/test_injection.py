"""Injected anomalies: selected events, changed columns, unchanged columns."""

import pytest
import torch

from helpers.made_streams import made_events
from tgflow.graph import TemporalGraph
from tgflow.train.tasks.injection import inject

GRAPH = TemporalGraph.from_events(made_events(200))


@pytest.mark.parametrize("kind", ["structural", "temporal"])
def test_anomalies_have_another_destination_or_the_time_of_another_pair(kind):
    made, places = inject(GRAPH, kind, 0.1, start=100, seed=0)
    assert len(places) == 10
    assert int(places.min()) >= 100
    was, now = (graph.log.read(0, 200) for graph in (GRAPH, made))
    assert torch.equal(was.t, now.t)
    assert now.label.nonzero().flatten().tolist() == places.tolist()
    assert made.edge_x is GRAPH.edge_x
    rest = now.label == 0
    assert torch.equal(was.src[rest], now.src[rest])
    assert torch.equal(was.dst[rest], now.dst[rest])
    if kind == "structural":
        assert torch.equal(was.src, now.src)
        assert (was.dst != now.dst)[places].all()
        assert set(now.dst.tolist()) <= set(was.dst.tolist())
    else:
        pairs = (
            sorted(zip(each.src[places].tolist(), each.dst[places].tolist(), strict=True))
            for each in (was, now)
        )
        assert next(pairs) == next(pairs)


def test_too_few_events_are_refused():
    with pytest.raises(ValueError, match="too few events"):
        inject(GRAPH, "structural", 0.5, start=199, seed=0)
