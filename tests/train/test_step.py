"""One training step: loss, dropout, and non-finite values."""

import math
from dataclasses import replace

import pytest
import torch

from helpers.made_streams import made_events, small_tgn
from tgflow import ContinualConfig, Plan, TemporalGraph
from tgflow.train import TrainingDiverged
from tgflow.train.losses import LOSSES
from tgflow.train.step import TrainStep

CONFIG = ContinualConfig(seed=4, learning_rate=1e-2)


def some_batch(model, index=3, epoch=0):
    graph = TemporalGraph.from_events(made_events(60))
    plan = Plan.for_model(model, graph, batch_size=10)
    return plan.batch(epoch, index)


def test_dropout_is_keyed_and_does_not_change_the_global_generator():
    outcomes = []
    for draws in (0, 5):
        torch.manual_seed(1)
        torch.rand(draws)
        model = small_tgn(dropout=0.5)
        state = torch.get_rng_state()
        outcomes.append(TrainStep(model, CONFIG).learn(some_batch(model)).loss)
        assert torch.equal(torch.get_rng_state(), state)
    model = small_tgn(dropout=0.5)
    other = TrainStep(model, CONFIG).learn(some_batch(model, epoch=1)).loss
    assert outcomes[0] == outcomes[1] != other


@pytest.mark.parametrize("step", ["predict", "learn"])
def test_non_finite_value_stops_the_run_and_changes_nothing(step, monkeypatch):
    model = small_tgn()
    learner = TrainStep(model, CONFIG)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    monkeypatch.setitem(LOSSES, "bce", lambda scores: scores.positive.sum() * math.inf)
    with pytest.raises(TrainingDiverged, match=r"the loss is -?inf; lower the learning rate"):
        TrainStep(model, CONFIG).learn(some_batch(model))
    next(model.decoder.parameters()).data.fill_(math.nan)
    text = r"epoch 2, batch 3, events \[30, 40\): the positive score of event 30 is nan"
    with pytest.raises(TrainingDiverged, match=text):
        getattr(learner, step)(some_batch(model, epoch=2))
    after = model.state_dict()
    assert all(torch.equal(x, after[name]) for name, x in before.items() if "decoder" not in name)


def test_loss_of_the_model_is_used_unless_configured():
    def loss(paper, setting):
        model = small_tgn(dropout=0.0)
        model.loss = paper
        return TrainStep(model, replace(CONFIG, loss=setting)).learn(some_batch(model)).loss

    assert loss("bpr", None) == loss("bce", "bpr") != loss("bpr", "bce")
