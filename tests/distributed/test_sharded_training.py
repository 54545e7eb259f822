"""Training over shards of a graph: what ranks end with is what one process does, bit for bit."""

from __future__ import annotations

import threading
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.effort import cases
from helpers.made_models import X_DIM, made_events, made_model
from helpers.records import Losses
from helpers.shards import STRIDE
from helpers.thread_peers import in_threads
from helpers.worlds import in_world
from tgflow.graph import TemporalGraph
from tgflow.peers import Shard
from tgflow.train import ContinualConfig, ContinualTrainer

MADE = made_events(66)
EVENTS = replace(MADE, src=STRIDE * MADE.src, dst=STRIDE * MADE.dst)
"""Of all ranks' nodes."""
BATCHES = [EVENTS[:5], EVENTS[5:60], EVENTS[60:]]
"""Of one micro-batch less, of three at once, and of the rest."""
CONFIG = ContinualConfig(batch_size=16, learning_rate=1e-2, mrr_negatives=3, slices=4)
HERE = replace(CONFIG, num_threads=0)
"""For ranks that are threads: those have one order of what they send, not one a group."""


_MAKING = threading.Lock()


def model_of(name: str, peers: Any) -> Any:
    """Return the same model on all ranks: torch's generator is that of all threads."""
    with _MAKING:
        model = made_model(name, dropout=0.2)
    if peers is not None:
        peers.broadcast(torch.zeros(1), kind="made")
    return model


def trainer_of(name: str, config: ContinualConfig, peers: Any = None) -> ContinualTrainer:
    model = model_of(name, peers)
    shard = None if peers is None else peers.shard
    graph = TemporalGraph("undirected", X_DIM, shard=shard)
    return ContinualTrainer(model, graph, config, peers=peers)


def left_by(trainer: ContinualTrainer, batches: Any) -> Any:
    losses = Losses()
    trainer.run(batches, losses)
    return trainer.checkpoint().sections, losses.seen


def assert_same_state(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for part, tensors in expected.items():
        for key, tensor in tensors.items():
            assert torch.equal(found[part][key], tensor), (part, key)


@pytest.mark.parametrize("world", cases([2, 3, 4], [3]))
@pytest.mark.parametrize("updates", cases([0, 1, 2], [1]))
@pytest.mark.parametrize("name", ["tgn", "tgat"])
def test_ranks_with_shards_learn_what_one_process_does(name: str, updates: int, world: int) -> None:
    """Parameters, Adam, memory, scores and what is measured, with replay and a short last batch."""
    config = replace(HERE, updates=updates)
    expected = left_by(trainer_of(name, config), BATCHES)

    def work(peers: Any) -> Any:
        trainer = trainer_of(name, config, peers)
        return left_by(trainer, BATCHES), trainer.graph.shard

    found = in_threads(world, work)
    assert [shard for _, shard in found] == [Shard(rank, world) for rank in range(world)]
    for (state, _), _ in found:
        assert_same_state(state, expected[0])
    assert found[0][0][1] == expected[1]


def sharded_process(peers: Any, name: str) -> Any:
    trainer = trainer_of(name, CONFIG, peers)
    trainer.run(BATCHES)
    flows = peers.traffic.flows
    return trainer.checkpoint().sections, {kind: flow.calls for kind, flow in flows.items()}


def test_processes_prepare_ahead_in_a_group_of_their_own() -> None:
    expected, _ = left_by(trainer_of("tgat", CONFIG), BATCHES)
    for state, calls in in_world(2, sharded_process, "tgat"):
        assert_same_state(state, expected)
        # five micro-batches in three turns: two exchanges of queries a hop, two of answers
        hops = len(made_model("tgat").fanouts)
        assert calls["queries"] == calls["answers"] == 3 * 2 * hops


def test_a_run_goes_on_with_other_shards() -> None:
    expected = left_by(trainer_of("tgn", HERE), [EVENTS])[0]

    def half(peers: Any) -> Any:
        trainer = trainer_of("tgn", HERE, peers)
        trainer.run([EVENTS[:32]])
        return trainer.checkpoint()

    saved = in_threads(3, half)[1]

    def rest(peers: Any) -> Any:
        model = model_of("tgn", peers)
        trainer = ContinualTrainer.from_checkpoint(
            model, deepcopy(saved), peers=peers, shard=peers.shard
        )
        assert trainer.graph.shard == peers.shard
        return left_by(trainer, [EVENTS[32:]])[0]

    for state in in_threads(2, rest):
        assert_same_state(state, expected)


def test_what_waits_in_a_shard_is_refused() -> None:
    def work(peers: Any) -> None:
        trainer = trainer_of("tgn", HERE, peers)
        next(iter(trainer.steps([EVENTS])))
        next(iter(trainer.steps([])))

    with pytest.raises(ValueError, match=r"events wait in a sharded graph, .* a checkpoint"):
        in_threads(2, work)


def test_a_shard_of_another_world_is_refused() -> None:
    graph = TemporalGraph("undirected", X_DIM, shard=Shard(1, 2))
    trainer = ContinualTrainer(made_model("tgat"), graph, CONFIG)
    with pytest.raises(ValueError, match=r"make it with TemporalGraph\(shard=peers.shard\)"):
        trainer.run([EVENTS])
