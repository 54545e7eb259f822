"""Training on rank processes matches one process bit for bit."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from helpers.effort import slow
from helpers.live_runs import untimed
from helpers.made_models import X_DIM, made_events, made_model
from helpers.ranks import assert_sections, sections_of, spread_events, with_sharded_memory
from helpers.worlds import in_world
from tgflow import ContinualConfig, ContinualTrainer, OfflineConfig, OfflineTrainer, TemporalGraph
from tgflow.base.peers import Peers, Shard
from tgflow.ranks import reducer
from tgflow.ranks.control import Order

EVENTS = spread_events(made_events(66))
"""The last of the micro-batches has two events, fewer than there are slices."""
CONFIG = ContinualConfig(
    batch_size=16, learning_rate=1e-2, mrr_negatives=3, grad_clip=1.0, slices=4
)


class Scored:
    """A metric that records all predicted scores."""

    def __init__(self, trainer):
        self.seen = []
        trainer._stepper.on_scores = lambda of, *scores: self.seen.append((of.start, scores[:3]))


def trainer_of(peers, name, config, sharded=()):
    model = made_model(name, dropout=0.2)
    if "memory" in sharded and peers.world > 1:
        model = with_sharded_memory(model, peers)
    shard = peers.shard if "graph" in sharded else None
    graph = TemporalGraph("undirected", X_DIM, shard=shard)
    return ContinualTrainer(model, graph, config, peers=peers)


def learn(peers, name, config, sharded=()):
    """Return all results of a training: state, scores, records, result, computing ranks."""
    trainer = trainer_of(peers, name, config, sharded=sharded)
    scored = Scored(trainer)
    records = [untimed(record.to_json()) for record in trainer.steps([EVENTS])]
    return {
        "state": sections_of(trainer, peers.shard),
        "scores": scored.seen,
        "records": records,
        "result": {**untimed(trainer.result()), "counts_bytes": None},  # of each rank its own
    }


def learn_all(peers, tasks):
    return [learn(peers, *task) for task in tasks]


def assert_same_state(found, expected):
    assert found.keys() == expected.keys()
    for section, held in expected.items():
        assert found[section].keys() == held.keys()
        for name, tensor in held.items():
            assert torch.equal(found[section][name], tensor), (section, name)


def assert_ranks_learned(ranks, expected):
    first, *others = ranks
    assert_sections([rank["state"] for rank in ranks], expected["state"])
    assert first["records"] == expected["records"]
    assert first["result"] == expected["result"]
    assert len(first["scores"]) == len(expected["scores"]) > 0
    for (start, scores), (where, wanted) in zip(first["scores"], expected["scores"], strict=True):
        assert start == where
        assert all(torch.equal(a, b) for a, b in zip(scores, wanted, strict=True))
    for other in others:
        assert other["scores"] == []
        for record, wanted in zip(other["records"], expected["records"], strict=True):
            assert [record[key] for key in ("start", "stop", "loss")] == [
                wanted[key] for key in ("start", "stop", "loss")
            ]


def tasks_of(name, updates, sharded=()):
    config = replace(CONFIG, replay_ratio=0.5)
    return [(name, replace(config, updates=each), sharded) for each in updates]


ALL = ("graph", "memory")
EVERY = [parts for size in range(3) for parts in combinations(ALL, size)]


@pytest.mark.parametrize(
    ("world", "name", "updates", "sharded"),
    [
        (3, "tgn+pairs", (1,), ALL),
        *(
            slow(world, name, (0, 1, 2), sharded)
            for world in (2, 3, 4)
            for name in ("tgn", "tgat", "tgn+pairs", "jodie")
            for sharded in EVERY
        ),
    ],
)
def test_n_ranks_match_one_process(world, name, updates, sharded):
    """Parameters, Adam, memory, every score and every metric, with dropout and replay."""
    tasks = tasks_of(name, updates, sharded)
    ranks = in_world(world, learn_all, tasks)
    for number, expected in enumerate(learn_all(Peers(), tasks)):
        assert_ranks_learned([results[number] for results in ranks], expected)


@pytest.mark.parametrize(
    ("name", "changes", "sharded"),
    [
        ("tgn+pairs", {"mrr_negatives": "all", "mrr_every": 2}, ()),
        ("tgn", {"mrr_further": "historical:2"}, ("graph", "memory")),
    ],
)
def test_ranks_learn_from_lists_and_rank_among_all_as_one_process(name, changes, sharded):
    config = replace(CONFIG, negatives="random:4,source:2,recent:2", loss="softmax", **changes)
    expected = learn(Peers(), name, config)
    assert_ranks_learned(in_world(2, learn, name, config, sharded), expected)


def test_ranking_among_all_needs_all_of_the_graph_and_memory():
    config = replace(CONFIG, mrr_negatives="all")
    graph = TemporalGraph("undirected", X_DIM, shard=Shard(0, 2))
    with pytest.raises(ValueError, match="leave sharding out"):
        ContinualTrainer(made_model("tgn"), graph, config)


def ends_apart(peers, changed):
    """Flip a bit on the last rank before a micro-batch; return the outcome."""
    reducer.CHECKED_EVERY = 2
    trainer = trainer_of(peers, "tgn", CONFIG)
    records = []
    try:
        for record in trainer.steps([EVENTS]):
            records.append(record)
            if len(records) == changed and peers.rank == peers.world - 1:
                parameter = next(iter(trainer.model.parameters()))
                parameter.data.view(torch.int32).flatten()[0] ^= 1
    except Exception as error:
        return len(records), type(error).__name__, str(error)
    return len(records), "", ""


def test_flipped_bit_on_one_rank_ends_the_run():
    for learned, name, text in in_world(3, ends_apart, 2):
        assert (learned, name) == (2, "RanksDisagree")
        assert text.startswith("the parameters of rank 2 are not those of rank 0")


def obey(peers):
    """Request a checkpoint on the last rank; return the orders after each micro-batch."""
    trainer = trainer_of(peers, "tgn", replace(CONFIG, updates=2))
    found, figures = [], ()
    for record in trainer.steps([EVENTS]):
        control = trainer.control
        found.append((record.stop, control.order))
        figures = control.figures
        if Order.CHECKPOINT in control.order:
            control.request &= ~Order.CHECKPOINT
        if record.stop == 16 and peers.rank == peers.world - 1:
            control.request |= Order.CHECKPOINT
        if record.stop == 32 and peers.rank == 0:
            control.request |= Order.STOP
    return found, figures


def test_all_ranks_receive_the_same_order_after_the_same_micro_batch():
    world = 3
    ranks = in_world(world, obey)
    assert [found for found, _ in ranks] == [ranks[0][0]] * world
    ordered = dict(ranks[0][0])
    assert ordered[16] == Order.NONE
    assert Order.CHECKPOINT in ordered[32]
    assert [Order.STOP in ordered[stop] for stop in (32, 48, 64, 66)] == [False, True, True, True]
    assert Order.CHECKPOINT not in ordered[48] | ordered[64] | ordered[66], "obeyed twice"
    assert [len(figures) for _, figures in ranks] == [3, 0, 0]
    for each in ranks[0][1]:
        assert each.compute_seconds > 0
        assert each.gradient_bytes > 0


def fit(peers, name, config):
    trainer = OfflineTrainer(
        made_model(name), TemporalGraph.from_events(made_events(150)), config, peers=peers
    )
    result = trainer.fit()
    return trainer.checkpoint().sections, untimed(result)


@pytest.mark.parametrize(
    ("world", "name", "epochs"),
    [(2, "tgn", 2), *(slow(world, name, 6) for world in (2, 3, 4) for name in ("tgn", "tgat"))],
)
def test_offline_training_chooses_the_same_epoch(world, name, epochs):
    config = OfflineConfig(
        batch_size=20, epochs=epochs, patience=2, slices=4, mrr_negatives=2, learning_rate=3e-2,
        test_negatives=("random", "historical"), new_node_ratio=0.2, negatives="random:3,source:2",
    )  # fmt: skip
    state, result = fit(Peers(), name, config)
    for rank, (found, said) in enumerate(in_world(world, fit, name, config)):
        assert_same_state(found, state)
        assert said["best_epoch"] == result["best_epoch"]
        if rank == 0:
            assert said == result
        assert ("test.ap" in said) == (rank == 0)
