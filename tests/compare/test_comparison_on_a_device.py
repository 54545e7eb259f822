"""A comparison on a device: the same figures, batches freed in turn, figures some steps behind."""

from __future__ import annotations

import pytest

from helpers.devices import apart, cuda, place_of
from helpers.emulated_training import emulated_pages  # noqa: F401
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from tgflow.compare.comparison import Comparison
from tgflow.compare.lineup import Entrant
from tgflow.graph import TemporalGraph
from tgflow.models import Recency
from tgflow.train.config import ContinualConfig

pytestmark = pytest.mark.usefixtures("emulated_pages")
CONFIG = ContinualConfig(batch_size=20, mrr_negatives=5, learning_rate=1e-2)


def compared(place):
    copy = Entrant("frozen", 0, small_tgn().to(place), frozen_of="tgn", frozen_at=60)
    lineup = [
        Entrant("recency", 0, Recency()),
        Entrant("tgn", 0, small_tgn().to(place)),
        copy,
        Entrant("tgat", 0, small_tgat().to(place)),
    ]
    found = Comparison(lineup, TemporalGraph("undirected", 2), CONFIG)
    records = list(found.steps(pieces(made_events(130), 64)))
    assert [record.stop for record in records] == [20, 40, 60, 80, 100, 120, 130]
    return found.result()["participants"]


@pytest.mark.slow
@pytest.mark.parametrize("device", [apart, cuda])
def test_a_device_compares_as_the_cpu_does(device):
    here, there = compared("cpu"), compared(place_of(device))
    for key, expected in here.items():
        assert there[key]["failure"] is None
        for name in ("prequential.ap", "prequential.mrr", "running.loss"):
            if name in expected:
                assert there[key][name] == pytest.approx(expected[name], abs=0.02), (key, name)
