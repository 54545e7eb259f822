"""Trainer checks of a model's state and widths, and of a checkpoint's ids."""

from dataclasses import replace

import pytest
import torch

from helpers.effort import slow
from helpers.live_runs import Losses
from helpers.made_streams import made_events, pieces, small_tgn
from tgflow import checkpoint as ckpt
from tgflow.checkpoint.sections import Ids
from tgflow.graph import TemporalGraph
from tgflow.graph.ids import NodeIds
from tgflow.graph.tables import FeatureTable
from tgflow.models import TGAT, TGN
from tgflow.train.config import ContinualConfig, OfflineConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.offline import OfflineTrainer

EVENTS = made_events(300)
CONTINUAL = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=3)


def resumed_with(changes, before, kept):
    """Return the losses of a TGN resumed at event 200 with other settings.

    Before, its memory keeps the history of `kept` events, more than the settings require.
    """
    config = replace(CONTINUAL, replay_horizon=40, **before)
    first, losses = small_tgn(), Losses()
    trainer = ContinualTrainer(first, TemporalGraph(edge_x_dim=2), config)
    if kept is not None:
        first.state.keep_past(kept)
    trainer.run([EVENTS[:200]])
    again = ContinualTrainer.from_checkpoint(
        small_tgn(), trainer.checkpoint(), replace(config, **changes)
    )
    again.run([EVENTS[200:]], losses)
    return losses.seen


@pytest.mark.parametrize(
    ("changes", "before"),
    [
        ({"replay_horizon": 150}, {}),
        slow({"replay_horizon": 20}, {}),
        slow({"replay_ratio": 2.0}, {"replay_ratio": 0.0}),
        ({"updates": 1}, {"updates": 0}),
    ],
)
def test_changed_replay_reads_no_discarded_memory(changes, before):
    """A memory with a longer history gives the same losses, so all rows read were kept."""
    assert resumed_with(changes, before, None) == resumed_with(changes, before, 300)


@pytest.mark.parametrize("model", [TGN, TGAT])
def test_first_batch_names_mismatched_widths(model):
    trainer = ContinualTrainer(model(), TemporalGraph(edge_x_dim=2), CONTINUAL)
    text = r"reads edge features of width 0, the graph has 2: .* for_graph\(graph\)"
    with pytest.raises(ValueError, match=text):
        trainer.run([EVENTS])
    assert trainer.position == 0
    graph = TemporalGraph.from_events(EVENTS, node_x=FeatureTable.from_tensor(torch.ones(32, 3)))
    model = model(model.config_type(edge_x_dim=2, node_x_dim=5))
    with pytest.raises(ValueError, match="node features of width 5, the graph has 3"):
        OfflineTrainer(model, graph, OfflineConfig(epochs=1)).fit()


@pytest.mark.parametrize("names", [[*range(32)], [f"n{i}" for i in range(32)]])
def test_events_of_nodes_without_ids_are_refused_before_anything_is_created(names):
    trainer = ContinualTrainer(small_tgn(), TemporalGraph(edge_x_dim=2), CONTINUAL)
    trainer.run(pieces(EVENTS[:40], 40))
    ids = NodeIds()
    ids.encode(names, names)
    saved = trainer.checkpoint()
    Ids(ids).save(saved)
    assert ContinualTrainer.from_checkpoint(small_tgn(), saved).position == 40
    last = int(EVENTS.dst[:40].max())
    saved.note("ids", saved.meta["ids"] | {"num": last})
    with pytest.raises(ckpt.UntrustedCheckpoint, match=f"has node {last}, and there are {last} id"):
        ContinualTrainer.from_checkpoint(small_tgn(), saved)
