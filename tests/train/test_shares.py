"""Batches in slices: what they add up to, and that nobody can tell who has computed which."""

from __future__ import annotations

import threading
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.effort import cases
from helpers.made_models import X_DIM, made_events, made_model, plan_for
from helpers.records import Losses
from helpers.split_reducers import Meeting
from tgflow.graph import TemporalGraph
from tgflow.model import Scores, TemporalModel
from tgflow.models import MODELS
from tgflow.plan import ExperienceReplay
from tgflow.share import Share
from tgflow.train import ContinualConfig, ContinualTrainer, OfflineConfig, OfflineTrainer
from tgflow.train.finite import TrainingDiverged
from tgflow.train.learner import Learner

EVENTS = made_events(66)
"""The last of the micro-batches has two events, fewer than there are slices."""
CONFIG = ContinualConfig(batch_size=16, learning_rate=1e-2, mrr_negatives=3, slices=4)


_MAKING = threading.Lock()


def model_of(name: str, **settings: Any) -> Any:
    """Return the same model at every call, from any thread: torch's generator is everybody's."""
    with _MAKING:
        return made_model(name, **settings)


def trainer_of(name: str, config: ContinualConfig, **options: Any) -> ContinualTrainer:
    graph = TemporalGraph("undirected", X_DIM)
    model = model_of(name, **options.pop("model", {}))
    return ContinualTrainer(model, graph, config, **options)


def left_by(trainer: ContinualTrainer, events: Any = EVENTS) -> tuple[Any, ...]:
    """Train, and return everything that this leaves: tensors, then metrics of each step."""
    losses = Losses()
    trainer.run([events], losses)
    return trainer.checkpoint().sections, losses.seen


def assert_same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    sections, steps = expected
    assert found[0].keys() == sections.keys()
    for part, tensors in sections.items():
        for key, tensor in tensors.items():
            assert torch.equal(found[0][part][key], tensor), (part, key)
    assert found[1] == steps


def learner_of(name: str, **options: Any) -> Learner:
    return Learner(model_of(name), seed=3, learning_rate=1e-2, **options)


@pytest.mark.parametrize("name", ["tgn+pairs", "tgat", "craft"])
def test_the_only_slice_of_a_batch_has_the_bits_of_the_batch(name: str) -> None:
    whole, sliced = learner_of(name), learner_of(name)
    for learner in (whole, sliced):
        learner.model.dropout_rate = 0.1
    plan = plan_for(whole.model, EVENTS, replay=None)
    for index in range(3):
        batch, share = plan.batch(0, index), plan.share(0, index, range(1))
        for part, learner in ((batch, whole), (share, sliced)):
            learner.commit(part, learner.learn(part).scores)
    for a, b in zip(whole.model.state_dict().values(), sliced.model.state_dict().values()):  # noqa: B905
        assert torch.equal(a, b)


@pytest.mark.parametrize("loss", ["bce", "softmax", "bpr"])
@pytest.mark.parametrize("slices", [2, 3, 7])
def test_the_slices_of_a_batch_add_up_to_its_loss_and_gradient(loss: Any, slices: int) -> None:
    """Slices of other sizes, some of replayed events alone, weigh as much as they have rows."""
    whole, sliced = (learner_of("tgn", loss=loss) for _ in range(2))
    replay = ExperienceReplay(ratio=0.6, half_life=50)
    plan = plan_for(whole.model, EVENTS, batch_size=16, replay=replay)
    cut = plan_for(whole.model, EVENTS, batch_size=16, replay=replay, slices=slices)
    for learner in (whole, sliced):
        learner.model.state.keep_past(60)
        learner.commit(plan.batch(0, 0), learner.predict(plan.batch(0, 0)))
    expected = whole.learn(plan.batch(0, 1))
    found = sliced.learn(cut.share(0, 1, range(slices)))
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.scores.positive, expected.scores.positive)
    torch.testing.assert_close(found.scores.negative, expected.scores.negative)
    pairs = zip(sliced.model.parameters(), whole.model.parameters(), strict=True)
    for a, b in pairs:
        zeros = torch.zeros_like(a)
        expected_grad = zeros if b.grad is None else b.grad
        torch.testing.assert_close(a.grad, expected_grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("slices", [2, 4])
def test_slices_learn_about_what_the_batch_does(slices: int) -> None:
    events = made_events(800)
    config = replace(CONFIG, batch_size=50)
    results = [
        trainer_of("tgn+pairs", replace(config, slices=n)).run([events])["prequential.ap"]
        for n in (1, slices)
    ]
    assert results[1] == pytest.approx(results[0], abs=0.02)


def test_each_slice_drops_by_a_key_of_its_own() -> None:
    learner = learner_of("tgn")
    seen = []
    learner._dropout.keyed = seen_keys(learner._dropout.keyed, seen)  # type: ignore[method-assign]
    plan = plan_for(learner.model, EVENTS, slices=3)
    learner.learn(plan.share(0, 1, range(3)))
    alone = learner_of("tgn")
    alone_seen: list[int] = []
    alone._dropout.keyed = seen_keys(alone._dropout.keyed, alone_seen)  # type: ignore[method-assign]
    alone.learn(plan.batch(0, 1))
    assert len({*seen, *alone_seen}) == 4


def seen_keys(keyed: Any, seen: list[int]) -> Any:
    def noted(key: int) -> Any:
        seen.append(key)
        return keyed(key)

    return noted


SPLITS = cases([[0, 1, 4], [0, 2, 4], [0, 3, 4], [0, 1, 2, 3, 4], [0, 1, 3, 4]], [[0, 1, 4]])


@pytest.mark.parametrize("cuts", SPLITS)
@pytest.mark.parametrize("updates", [0, 1, 2])
@pytest.mark.parametrize("name", ["tgn", "tgn+pairs", "tgat"])
def test_any_split_of_the_slices_ends_with_the_same_bits(
    name: str, updates: int, cuts: list[int]
) -> None:
    """Parameters, Adam, memory, scores and what is measured, with replay and a short last batch."""
    config = replace(CONFIG, updates=updates, grad_clip=1.0)
    model = {"dropout": 0.2}
    expected = left_by(trainer_of(name, config, model=model))
    for found in Meeting(cuts).run(
        lambda reducer: left_by(trainer_of(name, config, model=model, reducer=reducer))
    ):
        assert_same(found, expected)


@pytest.mark.parametrize("name", [*MODELS])
def test_slices_of_any_model_may_be_split(name: str) -> None:
    config = replace(CONFIG, slices=3, batch_size=20, updates=1)
    events = EVENTS[:41]
    expected = left_by(trainer_of(name, config), events)
    for found in Meeting([0, 1, 3]).run(
        lambda reducer: left_by(trainer_of(name, config, reducer=reducer), events)
    ):
        assert_same(found, expected)


def test_messages_that_are_averaged_may_be_split() -> None:
    model = {"aggregator": "mean"}
    expected = left_by(trainer_of("tgn", CONFIG, model=model))
    for found in Meeting([0, 2, 4]).run(
        lambda reducer: left_by(trainer_of("tgn", CONFIG, model=model, reducer=reducer))
    ):
        assert_same(found, expected)


def test_a_run_goes_on_with_another_split() -> None:
    expected = left_by(trainer_of("tgn", CONFIG))[0]
    first = Meeting([0, 1, 4]).run(half_of_a_run)[1]

    def rest(reducer: Any) -> Any:
        model = model_of("tgn")
        trainer = ContinualTrainer.from_checkpoint(model, deepcopy(first), reducer=reducer)
        trainer.run([EVENTS[32:]])
        return trainer.checkpoint().sections

    for sections in Meeting([0, 2, 3, 4]).run(rest):
        assert_same((sections, None), (expected, None))


def half_of_a_run(reducer: Any) -> Any:
    trainer = trainer_of("tgn", CONFIG, reducer=reducer)
    trainer.run([EVENTS[:32]])
    return trainer.checkpoint()


@pytest.mark.parametrize("name", ["tgn", "edgebank-tw"])
def test_offline_training_may_be_split(name: str) -> None:
    events = made_events(120)
    config = OfflineConfig(batch_size=20, epochs=2, slices=3, mrr_negatives=2)

    def fitted(reducer: Any = None) -> Any:
        graph = TemporalGraph.from_events(events)
        trainer = OfflineTrainer(model_of(name), graph, config, reducer=reducer)
        result = trainer.fit()
        measured = {k: v for k, v in result.items() if k.split(".")[-1] in ("ap", "mrr", "auc")}
        return trainer.checkpoint().sections, measured | {"best": result["best_epoch"]}

    expected = fitted()
    for found in Meeting([0, 1, 3]).run(fitted):
        assert_same(found, expected)


class Breaking(TemporalModel):
    """Has no finite score for one source, from an event on."""

    fanouts = ()
    strategy = "recent"

    def __init__(self, source: int) -> None:
        super().__init__()
        self.source = source
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, batch: Any) -> Scores:
        bad = (batch.src == self.source) & (batch.eid >= 16)
        positive = torch.where(bad, torch.nan, self.weight * batch.dst)
        return Scores(positive, self.weight * batch.negative_dst)


def breaking(reducer: Any = None, **changes: Any) -> tuple[ContinualTrainer, str]:
    config = replace(CONFIG, replay_ratio=0.0, **changes)
    graph = TemporalGraph("undirected", X_DIM)
    trainer = ContinualTrainer(Breaking(int(EVENTS.src[17])), graph, config, reducer=reducer)
    try:
        trainer.run([EVENTS])
    except TrainingDiverged as error:
        return trainer, str(error)
    return trainer, ""


def test_what_is_not_finite_in_one_slice_stops_all() -> None:
    trainer, text = breaking()
    assert text.startswith("epoch 0, batch 1, events [16, 32): the positive score of event 1")
    assert trainer.position == 16
    (first, here), (second, there) = Meeting([0, 1, 4]).run(breaking)
    assert here == text
    assert "of a slice that is computed elsewhere is not finite; lower the" in there or there
    assert first.position == second.position == 16
    assert torch.equal(first.model.weight, second.model.weight)  # type: ignore[arg-type]
    assert torch.equal(first.model.weight, trainer.model.weight)  # type: ignore[arg-type]


def test_what_is_not_finite_in_one_slice_is_skipped_by_all() -> None:
    trainer, text = breaking(on_nan="skip")
    assert text == ""
    assert trainer.progress.num_skipped > 0
    for other, _ in Meeting([0, 3, 4]).run(lambda reducer: breaking(reducer, on_nan="skip")):
        assert other.progress.num_skipped == trainer.progress.num_skipped
        assert torch.equal(other.model.weight, trainer.model.weight)  # type: ignore[arg-type]


def test_a_loss_that_is_not_finite_leaves_parameters_and_marks_as_they_were() -> None:
    learner = learner_of("craft")
    plan = plan_for(learner.model, EVENTS, slices=2)
    before = {name: x.clone() for name, x in learner.model.state_dict().items()}
    forward = learner.model.forward

    def broken(batch: Any) -> Scores:
        scores: Scores = forward(batch)
        return scores._replace(positive=scores.positive * torch.nan)

    learner.model.forward = broken
    with pytest.raises(TrainingDiverged, match="batch 1"):
        learner.learn(plan.share(0, 1, range(2)))
    for name, x in learner.model.state_dict().items():
        assert torch.equal(x, before[name]), name


class Whole(TemporalModel):
    """Stores whole batches."""

    fanouts = ()
    strategy = "recent"
    state: Any

    def commit(self, batch: Any, found: Any) -> None:
        self.state = batch


def test_a_model_that_stores_whole_batches_is_refused() -> None:
    model = Whole()
    model.state = object()
    with pytest.raises(ValueError, match=r"Whole has a commit of its own, .*--slices 1"):
        ContinualTrainer(model, TemporalGraph(), CONFIG)
    with pytest.raises(ValueError, match="Whole has a commit of its own"):
        OfflineTrainer(model, TemporalGraph.from_events(EVENTS), OfflineConfig(slices=2))
    with pytest.raises(ValueError, match="slices must be at least 1, got 0"):
        ContinualConfig(slices=0)


def test_a_share_is_taken_for_its_batch() -> None:
    plan = plan_for(model_of("tgn"), EVENTS, slices=2)
    share = plan.share(0, 1, range(1, 2))
    assert isinstance(share, Share)
    assert (share.epoch, share.index, share.num_new, len(share)) == (0, 1, 20, 20)
