"""Optimizers, learning rate schedules and losses of the user's choice."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn.functional import softplus
from torch.optim import lr_scheduler

from helpers.live_runs import assert_same_state, state_of
from helpers.made_streams import made_events, pieces, small_tgn
from tgflow import checkpoint as ckpt
from tgflow.graph import TemporalGraph
from tgflow.train.config import ContinualConfig, OfflineConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.offline import OfflineTrainer

CONFIG = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=5)


def trainer_of(config=CONFIG, **options):
    return ContinualTrainer(small_tgn(), TemporalGraph("undirected", 2), config, **options)


def bits_after(trainer, events):
    trainer.run(pieces(events, 30))
    return {name: x.tolist() for name, x in state_of(trainer).items()}


def half_as_fast(optimizer):
    return lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 if step > 3 else 1.0)


@pytest.mark.parametrize(
    ("by_name", "by_settings", "by_callable"),
    [
        ("adam", {"name": "adam"}, partial(torch.optim.Adam, lr=1e-2, fused=True)),
        (
            "sgd:momentum=0.9,nesterov=true",
            {"name": "sgd", "momentum": 0.9, "nesterov": True},
            partial(torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True),
        ),
        (
            "rmsprop:lr=0.005",
            {"name": "rmsprop", "lr": 0.005},
            partial(torch.optim.RMSprop, lr=0.005),
        ),
    ],
)
def test_optimizer_by_name_settings_or_callable_is_the_same(by_name, by_settings, by_callable):
    events = made_events(100)
    expected = bits_after(trainer_of(optimizer=by_callable), events)
    assert bits_after(trainer_of(replace(CONFIG, optimizer=by_name)), events) == expected
    assert bits_after(trainer_of(optimizer=by_settings), events) == expected


def test_trainers_take_optimizer_schedule_and_loss():
    def only_positive(scores):
        return softplus(-scores.positive).mean()

    how = {"optimizer": "sgd", "lr_scheduler": "exponential:gamma=0.5", "loss": only_positive}
    graph = TemporalGraph.from_events(made_events(100))
    offline = OfflineTrainer(small_tgn(), graph, OfflineConfig(epochs=1), **how)
    for trainer in (trainer_of(**how), offline):
        learner = trainer._learner
        assert type(learner.optimizer) is torch.optim.SGD
        assert type(learner.lr_scheduler) is lr_scheduler.ExponentialLR
        assert learner.loss is only_positive


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [
        ("sgd:momentum=0.9", "cosine:T_max=12"),
        ("sgd", half_as_fast),
        ("adamw:amsgrad=true", "exponential:gamma=0.9"),
        ("rmsprop:momentum=0.5,centered=true", None),
        ("adagrad", "linear:total_iters=5"),
    ],
)
def test_resume_restores_optimizer_and_schedule_exactly(tmp_path, optimizer, scheduler):
    events, options = made_events(140), {"optimizer": optimizer, "lr_scheduler": scheduler}
    trainer = trainer_of(**options)
    for record in trainer.steps(pieces(events, 30)):
        if record.stop == 80:
            ckpt.save(tmp_path / "c", trainer.checkpoint())
    saved = ckpt.load(tmp_path / "c")
    again = ContinualTrainer.from_checkpoint(small_tgn(seed=9), saved, **options)
    again.run(pieces(events[80:], 30))
    assert_same_state(again, trainer)
    rates = [t._learner.optimizer.param_groups[0]["lr"] for t in (trainer, again)]
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of adam, .*, got 'lion'"),
        ({"optimizer": "sgd:momentum"}, "NAME:KEY=VALUE.*got 'momentum'"),
        ({"lr_scheduler": "warm"}, "lr_scheduler must be one of constant, .*, got 'warm'"),
        ({"optimizer": "sgd:betas=3"}, "optimizer 'sgd': .*betas"),
        ({"optimizer": lambda parameters: None}, "must return a torch.optim.Optimizer, got None"),
        ({"lr_scheduler": "cosine"}, "lr_scheduler 'cosine': .*T_max"),
        ({"lr_scheduler": lambda optimizer: 1}, "must return an LRScheduler, got int"),
        (
            {"lr_scheduler": partial(lr_scheduler.MultiStepLR, milestones=[3, 5])},
            "the state of MultiStepLR cannot be saved as JSON",
        ),
    ],
)
def test_unknown_or_invalid_optimizers_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        trainer_of(**options)


def test_config_refuses_unknown_names():
    with pytest.raises(ValueError, match="optimizer must be one of"):
        ContinualConfig(optimizer="lion")


BY_STEPS = {"lr_scheduler": "step:step_size=2"}
CHANGES = {
    "none": lambda meta: meta.pop("lr_scheduler"),
    "no state": lambda meta: meta["lr_scheduler"].pop("state"),
    "no base_lrs": lambda meta: meta["lr_scheduler"]["state"].pop("base_lrs"),
    "a number": lambda meta: meta["lr_scheduler"]["state"].update(base_lrs=0.5),
    "a method": lambda meta: meta["lr_scheduler"]["state"].update(step=1),
    "no groups": lambda meta: meta["lr_scheduler"].update(groups=[]),
    "parameters": lambda meta: meta["lr_scheduler"]["groups"][0].update(params=[1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_damaged_or_missing_schedule_is_refused(change):
    trainer = trainer_of(**BY_STEPS)
    trainer.run(pieces(made_events(40), 30))
    found = trainer.checkpoint()
    if change == "none":
        with pytest.raises(ckpt.CheckpointError, match="lr_scheduler"):
            ContinualTrainer.from_checkpoint(small_tgn(), found)
    CHANGES[change](found.meta)
    with pytest.raises(ckpt.CheckpointError):
        ContinualTrainer.from_checkpoint(small_tgn(), found, **BY_STEPS)
