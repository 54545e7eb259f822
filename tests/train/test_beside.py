"""Predictions beside learning: the bits of one after the other, and the same errors."""

import math
from dataclasses import replace

import pytest
import torch

from helpers.effort import slow
from helpers.kernels import needs_bfloat16
from helpers.live_runs import assert_same_state
from helpers.made_models import made_model
from helpers.made_streams import made_events
from tgflow import ContinualConfig, ContinualTrainer, TemporalGraph, _core
from tgflow.nn import linear
from tgflow.train import TrainingDiverged
from tgflow.train.concurrent_prediction import BesideLearning
from tgflow.train.config import ExecutionConfig

CONFIG = ContinualConfig(batch_size=16, mrr_negatives=5, learning_rate=1e-2, num_threads=0)


def trainer_of(name, beside, precision="fp32", **changes):
    graph = TemporalGraph("undirected", 2)
    execution = ExecutionConfig(beside=beside, precision=precision)
    return ContinualTrainer(
        made_model(name), graph, replace(CONFIG, **changes), execution=execution
    )


BESIDE = ["tgn", "tgn+pairs", "tgat", "jodie", "graphmixer", "tpnet"]
CHANGES = [{"updates": 2, "replay_ratio": 0.0}, {"grad_clip": 0.1}]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in BESIDE),
        *(("tgn+pairs", changes) for changes in CHANGES),
        *(slow(name, c) for name in BESIDE if name != "tgn+pairs" for c in CHANGES),
    ],
)
def test_predictions_beside_learning_change_no_bit(name, changes):
    events = made_events(100)
    plain, beside = (trainer_of(name, flag, **changes) for flag in (False, True))
    records = [list(trainer.steps([events])) for trainer in (plain, beside)]
    expected, found = ([(r.metrics, r.loss, r.prequential) for r in each] for each in records)
    assert found == expected
    assert_same_state(beside, plain)


def test_core_has_all_threads_again_once_a_prediction_is_made():
    trainer, before, found = trainer_of("tgn", True), _core.num_threads(), []
    learner = trainer._stepper.learner
    update = learner.update  # after `before_update`, which waits for the prediction

    def noted():
        learner.before_update()
        found.append(_core.num_threads())
        update()

    learner.update = noted
    list(trainer.steps([made_events(96)]))
    assert found
    assert set(found) == {before} == {_core.num_threads()}


def test_replaced_parameters_are_used_by_both():
    plain, beside = (trainer_of("tgn", flag) for flag in (False, True))
    assert beside._stepper._beside is not None
    results, events = [], made_events(96)
    for trainer in (plain, beside):
        records = list(trainer.steps([events[:48]]))
        layer = trainer.model.decoder.out
        layer.bias = torch.nn.Parameter(layer.bias.detach() + 3)
        records += trainer.steps([events[48:]])
        results.append([record.metrics for record in records])
    assert results[0] == results[1]


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=needs_bfloat16)])
def test_resumed_run_continues_with_the_same_bits(precision):
    events, states = made_events(96), []
    for flag in (False, True):
        execution = ExecutionConfig(beside=flag, precision=precision)
        first = trainer_of("tgn", flag, precision)
        list(first.steps([events[:48]]))
        again = ContinualTrainer.from_checkpoint(
            made_model("tgn"), first.checkpoint(), CONFIG, execution=execution
        )
        list(again.steps([events[48:]]))
        states.append(again)
    assert_same_state(*states)
    undisturbed = trainer_of("tgn", True, precision)
    list(undisturbed.steps([events]))
    assert_same_state(states[0], undisturbed)
    if precision == "bf16":
        plain = trainer_of("tgn", False)
        list(plain.steps([events]))
        assert not torch.equal(plain.model.decoder.out.weight, again.model.decoder.out.weight)


def test_precision_that_the_device_lacks_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"--precision tf32 is for a GPU; .* --precision bf16"):
        trainer_of("tgn", False, "tf32")
    monkeypatch.setattr(linear, "has_bfloat16", lambda: False)
    with pytest.raises(ValueError, match=r"bf16 requires a CPU with AVX512_BF16, .* use .* fp32"):
        trainer_of("tgn", False, "bf16")


@pytest.mark.parametrize("row", [0, 20, 95])
def test_value_that_is_not_finite_stops_both_at_the_same_state(row):
    events = made_events(100)
    events.x[row] = math.inf
    trainers = [trainer_of("tgn", flag) for flag in (False, True)]
    errors = []
    for trainer in trainers:
        with pytest.raises(TrainingDiverged) as caught:
            list(trainer.steps([events]))
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert trainers[0].position == trainers[1].position
    plain, beside = trainers
    for one, other in zip(plain.model.parameters(), beside.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_models_whose_forward_pass_changes_what_a_prediction_reads_are_predicted_first():
    assert BesideLearning.is_possible(made_model("tgn"))
    assert not BesideLearning.is_possible(made_model("craft"))
    for changes in ({"slices": 2}, {"updates": 0}):
        assert trainer_of("tgn", True, **changes)._stepper._beside is None
