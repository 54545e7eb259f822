"""Batches in slices: their sum, and independence of the ranks that compute them.

Ranks are threads here; `tests/ranks/test_training.py` has real ones.
"""

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.effort import cases
from helpers.live_runs import Losses
from helpers.made_models import X_DIM, made_events, made_model, plan_for
from helpers.ranks import in_threads
from tgflow.base.peers import Peers, Shard
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Share
from tgflow.models import MODELS
from tgflow.nn.model import Scores, TemporalModel
from tgflow.plan import ExperienceReplay
from tgflow.train import ContinualConfig, ContinualTrainer, OfflineConfig, OfflineTrainer
from tgflow.train.finite import TrainingDiverged
from tgflow.train.plans import loader_threads
from tgflow.train.sliced_step import SlicedStep

EVENTS = made_events(66)
"""The last of the micro-batches has two events, fewer than there are slices."""
CONFIG = ContinualConfig(batch_size=16, learning_rate=1e-2, mrr_negatives=3, slices=4)


_MAKING = threading.Lock()


def model_of(name: str, peers: Any = None, **settings: Any) -> Any:
    """Return the same model at every call and rank, although threads share torch's generator.

    No thread may learn while another one builds its model.
    """
    with _MAKING:
        model = made_model(name, **settings)
    if peers is not None:
        peers.broadcast(torch.zeros(1), kind="made")
    return model


def trainer_of(
    name: str, config: ContinualConfig, peers: Any = None, **settings: Any
) -> ContinualTrainer:
    graph = TemporalGraph("undirected", X_DIM)
    return ContinualTrainer(model_of(name, peers, **settings), graph, config, peers=peers)


def left_by(trainer: ContinualTrainer, events: Any = EVENTS) -> tuple[Any, ...]:
    """Train, and return all results: tensors, then metrics of each step."""
    losses = Losses()
    trainer.run([events], losses)
    return trainer.checkpoint().sections, losses.seen


def assert_same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert_same_tensors(found[0], expected[0])
    assert found[1] == expected[1]


def assert_same_tensors(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for part, tensors in expected.items():
        for key, tensor in tensors.items():
            assert torch.equal(found[part][key], tensor), (part, key)


def assert_ranks_have(expected: tuple[Any, ...], found: list[tuple[Any, ...]]) -> None:
    """Compare tensors and losses of all ranks, and metrics of the first."""
    first, *others = found
    assert_same(first, expected)
    for other in others:
        assert_same_tensors(other[0], expected[0])
        assert other[1] == [(loss, {}) for loss, _ in expected[1]]


def learner_of(name: str, **options: Any) -> SlicedStep:
    return SlicedStep(model_of(name), ContinualConfig(seed=3, learning_rate=1e-2), **options)


@pytest.mark.parametrize("loss", ["bce", "softmax", "bpr"])
@pytest.mark.parametrize("slices", [2, 3, 7])
def test_slices_of_a_batch_sum_to_its_loss_and_gradient(loss: Any, slices: int) -> None:
    """Slices of different sizes, some with only replayed events, are weighted by rows."""
    whole, sliced = (learner_of("tgn", loss=loss) for _ in range(2))
    replay = ExperienceReplay(ratio=0.6, half_life=50)
    plan = plan_for(whole.model, EVENTS, batch_size=16, replay=replay)
    cut = plan_for(whole.model, EVENTS, batch_size=16, replay=replay, slices=slices)
    for learner in (whole, sliced):
        learner.model.state.keep_past(60)
        learner.commit(plan.batch(0, 0), learner.predict(plan.batch(0, 0)))
    expected = whole.learn(plan.batch(0, 1))
    found = sliced.learn(Share.of([cut.batch(0, 1, n) for n in range(slices)]))
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.scores.named(), expected.scores.named())
    pairs = zip(sliced.model.parameters(), whole.model.parameters(), strict=True)
    for a, b in pairs:
        zeros = torch.zeros_like(a)
        expected_grad = zeros if b.grad is None else b.grad
        torch.testing.assert_close(a.grad, expected_grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("world", cases([2, 3, 4], [3]))
@pytest.mark.parametrize("updates", cases([0, 1, 2], [2]))
@pytest.mark.parametrize("name", cases(["tgn", "tgn+pairs", "tgat"], ["tgn+pairs", "tgat"]))
def test_results_do_not_depend_on_the_number_of_ranks(name: str, updates: int, world: int) -> None:
    """Parameters, Adam, memory, scores and metrics, with replay and a short last batch."""
    config = replace(CONFIG, updates=updates, grad_clip=1.0)
    expected = left_by(trainer_of(name, config, dropout=0.2))
    found = in_threads(world, lambda peers: left_by(trainer_of(name, config, peers, dropout=0.2)))
    assert_ranks_have(expected, found)


@pytest.mark.parametrize("name", cases([*MODELS], ["tgn+pairs", "tgat", "tpnet", "jodie", "craft"]))
def test_slices_of_any_model_may_be_split(name: str) -> None:
    config = replace(CONFIG, slices=3, batch_size=20, updates=1)
    expected = left_by(trainer_of(name, config), EVENTS[:41])
    found = in_threads(2, lambda peers: left_by(trainer_of(name, config, peers), EVENTS[:41]))
    assert_ranks_have(expected, found)


@pytest.mark.parametrize(
    ("world", "threads", "stated", "expected"),
    [(1, 1, None, 1), (2, 1, None, 0), (2, 2, None, 1), (2, 1, 3, 3), (1, 4, 0, 0)],
)
def test_rank_with_one_thread_prepares_batches_between_steps(
    world: int, threads: int, stated: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    peers = Peers(Shard(0, world))
    assert loader_threads(replace(CONFIG, num_threads=stated), peers) == expected


class Breaking(TemporalModel):
    """Has a non-finite score for one event, when predicting or learning it."""

    fanouts = ()
    strategy = "recent"

    def __init__(self, event: int, *, learned: bool) -> None:
        super().__init__()
        self.event, self.learned = event, learned
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, batch: Any) -> Scores:
        bad = (batch.eid == self.event) & (self.training == self.learned)
        positive = torch.where(bad, torch.nan, self.weight * batch.dst)
        return Scores(positive, self.weight * batch.negative_dst)


BAD_EVENTS = [17, 30]
"""An event of the second micro-batch, whose first half is the first rank's."""


def breaking(
    event: int, updates: int, learned: bool, peers: Any = None
) -> tuple[ContinualTrainer, str]:
    config = replace(CONFIG, replay_ratio=0.0, updates=updates)
    graph = TemporalGraph("undirected", X_DIM)
    trainer = ContinualTrainer(Breaking(event, learned=learned), graph, config, peers=peers)
    try:
        trainer.run([EVENTS])
    except TrainingDiverged as error:
        return trainer, str(error)
    return trainer, ""


@pytest.mark.parametrize("bad", cases(BAD_EVENTS, BAD_EVENTS[-1:]))
@pytest.mark.parametrize(
    ("updates", "learned"), [(0, False), (1, False), (1, True), (2, False), (2, True)]
)
def test_non_finite_slice_stops_all_ranks(updates: int, learned: bool, bad: int) -> None:
    trainer, text = breaking(bad, updates, learned)
    start = f"epoch {int(learned)}, batch 1, events [16, 32): "
    here = f"the positive score of event {bad} is nan; lower the"
    elsewhere = "a score or the loss on another rank is not finite; lower"
    found = in_threads(2, lambda peers: breaking(bad, updates, learned, peers))
    for rank, (other, said) in enumerate([*found, (trainer, text)]):
        what = here if rank in (2, BAD_EVENTS.index(bad)) else elsewhere
        assert said.startswith(start + what)
        assert other.position == 16
        assert torch.equal(other.model.weight, trainer.model.weight)  # type: ignore[arg-type]


class Whole(TemporalModel):
    """Stores whole batches."""

    fanouts = ()
    strategy = "recent"
    state: Any

    def commit(self, batch: Any, found: Any) -> None:
        self.state = batch


def test_model_that_stores_whole_batches_is_refused() -> None:
    model = Whole()
    model.state = object()
    with pytest.raises(ValueError, match=r"Whole overrides commit, .*--slices 1"):
        ContinualTrainer(model, TemporalGraph(), CONFIG)
    with pytest.raises(ValueError, match="Whole overrides commit"):
        OfflineTrainer(model, TemporalGraph.from_events(EVENTS), OfflineConfig(slices=2))
    with pytest.raises(ValueError, match="slices must be at least 1, got 0"):
        ContinualConfig(slices=0)
