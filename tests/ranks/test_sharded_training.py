"""Training on graph shards matches one process bit for bit."""

import threading
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from helpers.effort import cases, slow
from helpers.live_runs import Losses
from helpers.made_models import X_DIM, made_events, made_model
from helpers.ranks import (
    OwnParts,
    assert_sections,
    in_threads,
    sections_of,
    spread_events,
    with_sharded_memory,
)
from helpers.worlds import in_world
from tgflow import ContinualConfig, ContinualTrainer, TemporalGraph
from tgflow.base.peers import Shard
from tgflow.graph.log import EventLog, Horizon
from tgflow.ranks.control import Order

EVENTS = spread_events(made_events(66))
"""Partitions of the nodes of all ranks."""
CONFIG = ContinualConfig(batch_size=16, learning_rate=1e-2, mrr_negatives=3, slices=4)
HERE = replace(CONFIG, num_threads=0)
"""For ranks that are threads: the training thread also prepares batches."""


_MAKING = threading.Lock()


def model_of(name, peers):
    """Return the same model on all ranks, although threads share torch's generator."""
    with _MAKING:
        model = made_model(name, dropout=0.2)
    if peers is not None:
        peers.broadcast(torch.zeros(1), kind="made")
    return model


GRAPH, MEMORY = "graph", "memory"
Sharded = tuple[str, ...]


def trainer_of(name, config, peers=None, sharded=(GRAPH,), horizon=None):
    model = model_of(name, peers)
    if peers is not None and MEMORY in sharded:
        model = with_sharded_memory(model, peers)
    shard = peers.shard if peers is not None and GRAPH in sharded else None
    graph = TemporalGraph("undirected", X_DIM, shard=shard, horizon=horizon)
    return ContinualTrainer(model, graph, config, peers=peers)


def left_by(trainer, batches, shard=None):
    losses = Losses()
    trainer.run(batches, losses)
    return sections_of(trainer, Shard() if shard is None else shard), losses.seen


ALL = (GRAPH, MEMORY)


@pytest.mark.parametrize("horizon", [slow(None), Horizon(18), slow(Horizon(ticks=40))], ids=str)
@pytest.mark.parametrize("sharded", cases([ALL, (MEMORY,)], [ALL]))
def test_sharded_training_resumes_with_any_number_of_ranks(sharded, horizon, monkeypatch):
    """Saved by two, one, four and three ranks, beyond the history that replay reads."""
    monkeypatch.setattr(EventLog, "piece", 8)
    config = replace(HERE, replay_horizon=20)
    whole = trainer_of("tgn+pairs", config, horizon=horizon)
    expected = left_by(whole, [EVENTS])[0]
    assert (whole.graph.log.first > 16) == (horizon is not None)
    saved = None
    for world, events in (
        (2, EVENTS[:16]),
        (1, EVENTS[16:32]),
        (4, EVENTS[32:48]),
        (3, EVENTS[48:]),
    ):

        def work(peers, events=events, before=saved):
            trainer = trainer_of("tgn+pairs", config, peers, sharded, horizon)
            if before is not None:
                trainer = ContinualTrainer.from_checkpoint(
                    trainer.model, deepcopy(before), peers=peers, shard=trainer.graph.shard
                )
            trainer.run([events])
            checkpoint = OwnParts({}, own=peers.shard)
            trainer.save_to(checkpoint)
            return checkpoint

        parts = in_threads(world, work)
        sections = {name: held for part in parts for name, held in part.sections.items()}
        saved = replace(parts[0], sections=sections)
    sections = {name: held for name, held in saved.sections.items() if name != "cache_edge_x"}
    assert_sections([sections], expected)


def test_unsharded_checkpoint_is_divided_among_ranks():
    """Saved by a process without sharding."""
    whole = trainer_of("tgn", replace(HERE, slices=1))
    whole.run([EVENTS[:32]])
    saved = whole.checkpoint()
    expected = ContinualTrainer.from_checkpoint(model_of("tgn", None), deepcopy(saved), HERE)

    def work(peers):
        model = with_sharded_memory(model_of("tgn", peers), peers)
        trainer = ContinualTrainer.from_checkpoint(model, deepcopy(saved), HERE, peers=peers)
        return left_by(trainer, [EVENTS[32:]], peers.shard)[0]

    assert_sections(in_threads(3, work), left_by(expected, [EVENTS[32:]])[0])


def stopped(peers, sharded):
    """Stop in the middle of a stream with prefetched batches; all ranks resume."""
    trainer = trainer_of("tgn", CONFIG, peers, sharded)
    position = 0
    for record in trainer.steps(EVENTS[i : i + 16] for i in range(0, 64, 16)):
        position = record.stop
        if peers.rank == 0:
            trainer.control.request |= Order.STOP
        if Order.STOP in trainer.control.order:
            break
    peers.broadcast(torch.zeros(1), kind="after")
    return position, peers.failure


@pytest.mark.parametrize("sharded", cases([ALL, (MEMORY,)], [ALL]))
def test_ranks_with_prefetched_batches_stop_together(sharded):
    found = in_world(3, stopped, sharded)
    assert found == [found[0]] * 3
    assert found[0][0] in (16, 32)
    assert found[0][1] is None
