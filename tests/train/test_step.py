"""One step: its loss, its dropout, and what happens when numbers run away."""

import math

import pytest
import torch

from helpers.made_streams import made_events, small_tgn
from tgflow.graph import TemporalGraph
from tgflow.plan.plan import Plan
from tgflow.train.finite import TrainingDiverged
from tgflow.train.losses import LOSSES
from tgflow.train.step import TrainStep


def some_batch(model, index=3, epoch=0):
    graph = TemporalGraph.from_events(made_events(60))
    plan = Plan.for_model(model, graph, batch_size=10)
    return plan.batch(epoch, index)


def test_predicting_changes_nothing():
    model = small_tgn()
    learner = TrainStep(model, seed=0, learning_rate=1e-2)
    batch = some_batch(model)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    first, second = learner.predict(batch), learner.predict(batch)
    assert torch.equal(first.positive, second.positive)
    assert not first.positive.requires_grad
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert not model.state.state_dict()["rows"].any()


def test_dropout_is_keyed_and_leaves_the_callers_draws_alone():
    outcomes = []
    for draws in (0, 5):
        torch.manual_seed(1)
        torch.rand(draws)
        model = small_tgn(dropout=0.5)
        state = torch.get_rng_state()
        outcomes.append(TrainStep(model, seed=4, learning_rate=1e-2).learn(some_batch(model)).loss)
        assert torch.equal(torch.get_rng_state(), state)
    model = small_tgn(dropout=0.5)
    other = TrainStep(model, seed=4, learning_rate=1e-2).learn(some_batch(model, epoch=1)).loss
    assert outcomes[0] == outcomes[1] != other


@pytest.mark.parametrize("step", ["predict", "learn"])
def test_scores_that_are_not_finite_stop_the_run_by_place(step):
    model = small_tgn()
    learner = TrainStep(model, seed=0, learning_rate=1e-2)
    next(model.decoder.parameters()).data.fill_(math.nan)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(
        TrainingDiverged,
        match=r"epoch 2, batch 3, events \[30, 40\): the positive score of event 30 is nan",
    ):
        getattr(learner, step)(some_batch(model, epoch=2))
    after = model.state_dict()
    assert all(torch.equal(x, after[name]) for name, x in before.items() if x.isfinite().all())


def test_a_loss_that_is_not_finite_stops_the_run(monkeypatch):
    model = small_tgn()
    monkeypatch.setitem(LOSSES, "bce", lambda scores: scores.positive.sum() * math.inf)
    with pytest.raises(TrainingDiverged, match=r"the loss is -?inf; lower the learning rate"):
        TrainStep(model, seed=0, learning_rate=1e-2).learn(some_batch(model))


def test_the_loss_is_the_models_unless_settings_say_otherwise():
    def loss(paper, setting):
        model = small_tgn(dropout=0.0)
        model.loss = paper
        return (
            TrainStep(model, seed=0, learning_rate=1e-2, loss=setting).learn(some_batch(model)).loss
        )

    assert loss("bpr", None) == loss("bce", "bpr") != loss("bpr", "bce")
