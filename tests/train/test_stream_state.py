"""A model with a state of its own: trainers and checkpoints know no more than its four methods."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from helpers.effort import slow
from helpers.made_streams import made_events, pieces, small_tgn
from helpers.records import Losses
from tgflow import checkpoint as ckpt
from tgflow.batch import Batch
from tgflow.checkpoint.parts import Ids
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.messages import Messages, NewEvents
from tgflow.model import Embeddings, Scores, TemporalModel
from tgflow.models import TGAT, TGN
from tgflow.tables import FeatureTable
from tgflow.train.config import ContinualConfig, OfflineConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.offline import OfflineTrainer

EVENTS = made_events(300)
CONTINUAL = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=3)


class Popularity:
    """How often each node was a destination: no module, just tensors in a dict."""

    def __init__(self) -> None:
        self.tensors = {"count": torch.zeros(32)}
        self.resets = 0
        self.past: int | None = None

    def reset(self) -> None:
        self.resets += 1
        self.tensors["count"].zero_()

    def state_dict(self) -> dict[str, Tensor]:
        return {name: x.clone() for name, x in self.tensors.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.tensors = {name: state[name].clone() for name in self.tensors}

    def keep_past(self, num_events: int) -> None:
        self.past = num_events


class Popular(TemporalModel):
    """Scores a destination by how popular it was, as it learns to."""

    fanouts = (1,)
    strategy = "recent"
    state: Popularity

    def __init__(self) -> None:
        super().__init__()
        self.state = Popularity()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, batch: Batch) -> Scores:
        count = self.state.tensors["count"].log1p()
        return Scores(self.scale * count[batch.dst], self.scale * count[batch.negative_dst])

    def messages(self, batch: Batch, found: Scores | Embeddings) -> Messages:
        return Messages()

    def store(self, events: NewEvents, messages: Messages) -> None:
        self.state.tensors["count"].index_add_(0, events.dst, torch.ones(len(events)))


def node_rows(dim: int) -> FeatureTable:
    table = FeatureTable(dim)
    table.append(torch.ones(32, dim))
    return table


def counts_of(stop: int, start: int = 0) -> Tensor:
    return torch.bincount(EVENTS.dst[start:stop], minlength=32).float()


def test_a_continual_trainer_fills_it_and_asks_for_the_past_that_it_replays():
    model = Popular()
    trainer = ContinualTrainer(model, TemporalGraph(edge_x_dim=2), CONTINUAL)
    assert model.state.past == CONTINUAL.replay_horizon + CONTINUAL.batch_size
    without = Popular()
    ContinualTrainer(without, TemporalGraph(), ContinualConfig(replay_ratio=0.0))
    assert without.state.past is None
    trainer.run(pieces(EVENTS, 64))
    assert torch.equal(model.state.tensors["count"], counts_of(300))


def test_an_offline_trainer_resets_it_before_each_epoch_and_tests_from_that_of_the_best():
    model = Popular()
    config = OfflineConfig(batch_size=20, epochs=3, learning_rate=1e-2, mrr_negatives=3)
    trainer = OfflineTrainer(model, TemporalGraph.from_events(EVENTS), config)
    trainer.fit()
    assert model.state.resets == 3
    trained = torch.bincount(EVENTS.dst[trainer.split.train], minlength=32).float()
    expected = trained + counts_of(300, trainer.split.val_start)
    assert torch.equal(model.state.tensors["count"], expected)


def resumed_with(changes, tmp_path, kept=None, before=None):
    """Return the losses of a TGN resumed at event 200 with other settings, and its trainer.

    Its first part keeps the past of `kept` events, where the settings themselves ask for less.
    """
    config = replace(CONTINUAL, replay_horizon=40, **(before or {}))
    first = small_tgn()
    trainer = ContinualTrainer(first, TemporalGraph(edge_x_dim=2), config)
    if kept is not None:
        first.state.keep_past(kept)
    trainer.run([EVENTS[:200]])
    path = ckpt.save(tmp_path / f"c{kept}", trainer.checkpoint())
    losses, model = Losses(), small_tgn()
    trainer = ContinualTrainer.from_checkpoint(
        model, ckpt.load(path), replace(config, **{**(before or {}), **changes})
    )
    trainer.run([EVENTS[200:]], losses)
    return losses.seen, trainer


@pytest.mark.parametrize(
    ("changes", "before"),
    [
        ({"replay_horizon": 150}, {}),
        slow({"replay_horizon": 20}, {}),
        slow({"replay_ratio": 2.0}, {"replay_ratio": 0.0}),
        ({"updates": 1}, {"updates": 0}),
    ],
)
def test_other_replay_reads_nothing_that_was_forgotten(tmp_path, changes, before):
    """A memory that has kept more gives the same losses, so what is read was kept."""
    losses, _ = resumed_with(changes, tmp_path, before=before)
    with_more, _ = resumed_with(changes, tmp_path, kept=300, before=before)
    assert losses == with_more


@pytest.mark.parametrize("model", [TGN, TGAT])
def test_the_first_batch_names_the_widths_that_disagree(model):
    trainer = ContinualTrainer(model(), TemporalGraph(edge_x_dim=2), CONTINUAL)
    text = r"reads edge features of width 0, the graph has 2: .* for_graph\(graph\)"
    with pytest.raises(ValueError, match=text):
        trainer.run([EVENTS])
    assert trainer.position == 0
    graph = TemporalGraph.from_events(EVENTS, node_x=node_rows(3))
    model = model(model.config_type(edge_x_dim=2, node_x_dim=5))
    with pytest.raises(ValueError, match="node features of width 5, the graph has 3"):
        OfflineTrainer(model, graph, OfflineConfig(epochs=1)).fit()


@pytest.mark.parametrize("names", [[*range(32)], [f"n{i}" for i in range(32)]])
def test_events_among_nodes_without_ids_are_refused_before_anything_is_made(names):
    trainer = ContinualTrainer(small_tgn(), TemporalGraph(edge_x_dim=2), CONTINUAL)
    trainer.run(pieces(EVENTS[:40], 40))
    ids = NodeIds()
    ids.encode(names, names)
    saved = trainer.checkpoint()
    Ids(ids).save(saved)
    assert ContinualTrainer.from_checkpoint(small_tgn(), saved).position == 40
    last = int(EVENTS.dst[:40].max())
    saved.sections["ids"] = ids.state_dict(last)
    with pytest.raises(ckpt.UntrustedCheckpoint, match=f"has node {last}, and there are {last} id"):
        ContinualTrainer.from_checkpoint(small_tgn(), saved)
