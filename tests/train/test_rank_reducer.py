"""Ranks that share the slices of each batch learn what one process does, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.effort import cases
from helpers.made_models import X_DIM, made_events, made_model
from helpers.records import Losses
from helpers.worlds import in_world
from tgflow.graph import TemporalGraph
from tgflow.peers import Peers, WorldError
from tgflow.train import ContinualConfig, ContinualTrainer
from tgflow.train.finite import TrainingDiverged
from tgflow.train.rank_reducer import RankReducer

EVENTS = made_events(66)
"""The last of the micro-batches has two events, fewer than there are slices."""
CONFIG = ContinualConfig(batch_size=16, learning_rate=1e-2, mrr_negatives=3, slices=4)


def trained(name: str, config: ContinualConfig, peers: Peers | None = None) -> Any:
    """Return what training leaves: tensors by section and name, and the metrics of each step."""
    model = made_model(name)
    reducer = None if peers is None else RankReducer(peers)
    graph = TemporalGraph("undirected", X_DIM)
    trainer = ContinualTrainer(model, graph, config, reducer=reducer)
    losses = Losses()
    trainer.run([EVENTS], losses)
    return trainer.checkpoint().sections, losses.seen


def learn_together(peers: Peers, names: list[str], configs: list[ContinualConfig]) -> None:
    for name in names:
        for config in configs:
            sections, steps = trained(name, config)
            found, seen = trained(name, config, peers)
            assert seen == steps
            assert found.keys() == sections.keys()
            for part, tensors in sections.items():
                for key, tensor in tensors.items():
                    assert torch.equal(found[part][key], tensor), (name, part, key)


@pytest.mark.parametrize("world", cases([2, 3, 4], quick=[3]))
def test_n_ranks_learn_what_one_does(world: int) -> None:
    configs = [replace(CONFIG, updates=updates) for updates in (0, 1, 2)]
    in_world(world, learn_together, ["tgn", "tgat", "jodie"], configs)


def spoil(peers: Peers, on_nan: str) -> int:
    """Only the last rank computes the slice that has a score which is not finite."""
    model = made_model("tgn")
    plain = model.forward

    def forward(batch: Any) -> Any:
        scores = plain(batch)
        if batch.slice.number == 3 and batch.index == 2:
            scores.positive.fill_(float("nan"))
        return scores

    model.forward = forward
    config = replace(CONFIG, on_nan=on_nan)
    graph = TemporalGraph("undirected", X_DIM)
    trainer = ContinualTrainer(model, graph, config, reducer=RankReducer(peers))
    if on_nan == "stop":
        with pytest.raises(TrainingDiverged):
            trainer.run([EVENTS])
    else:
        trainer.run([EVENTS])
    return trainer.position, trainer.progress.num_skipped


@pytest.mark.parametrize("on_nan", cases(["stop", "skip"], quick=["stop"]))
def test_what_is_not_finite_on_one_rank_stops_all_or_is_skipped_by_all(on_nan: str) -> None:
    first, second = in_world(2, spoil, on_nan)
    assert first == second
    assert first[0] == (32 if on_nan == "stop" else 66)


def too_many(peers: Peers) -> None:
    with pytest.raises(WorldError, match="slices=3"):
        trained("tgn", replace(CONFIG, slices=2), peers)


def test_more_ranks_than_slices_are_refused() -> None:
    in_world(3, too_many)
