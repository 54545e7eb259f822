"""Training with node memory in tables: the losses of plain memory, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.effort import cases
from helpers.made_streams import made_events, pieces, small_tgn
from helpers.memory_tables import KINDS, NEEDS, memory_table_of
from helpers.records import Losses
from tgflow.graph import TemporalGraph
from tgflow.models.tgn import TGN
from tgflow.nn import NodeMemory
from tgflow.train.config import ContinualConfig, OfflineConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.offline import OfflineTrainer

EVENTS = made_events(300)
# Models train on the CPU, whose sums have an order of their own.
for_each_kind_here = pytest.mark.parametrize(
    "kind",
    cases(
        [kind for kind in KINDS if kind.split(",")[0] not in NEEDS], ["host, cached", "uva, cached"]
    ),
)


def tgn_in(kind: str | None) -> TGN:
    model = small_tgn()
    if kind is not None:
        width = model.state.table.dim
        model.state = NodeMemory(8, width - 8, memory_table_of(kind, width))
    return model


def continual(model: TGN) -> list[Any]:
    losses = Losses()
    config = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=3, replay_ratio=0.5)
    trainer = ContinualTrainer(model, TemporalGraph(edge_x_dim=2), config)
    trainer.run(pieces(EVENTS, 30), losses)
    return [losses.seen, {k: v.tolist() for k, v in model.state.state_dict().items()}]


def offline(model: TGN) -> list[Any]:
    losses = Losses()
    config = OfflineConfig(batch_size=20, learning_rate=1e-2, epochs=2, mrr_negatives=3)
    out = OfflineTrainer(model, TemporalGraph.from_events(EVENTS), config, losses).fit()
    return [losses.seen, out["test.ap"], out["test.mrr"]]


@for_each_kind_here
def test_continual_training_is_the_same(kind):
    assert continual(tgn_in(kind)) == continual(tgn_in(None))


@for_each_kind_here
def test_offline_training_is_the_same(kind):
    assert offline(tgn_in(kind)) == offline(tgn_in(None))
