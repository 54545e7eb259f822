"""Scores of each event before it is learned, and calibrated probabilities."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.made_models import X_DIM, made_model
from helpers.made_streams import made_events, pieces, small_tgn
from helpers.ranks import in_threads
from tgflow.checkpoint import Checkpoint, UntrustedCheckpoint
from tgflow.graph import TemporalGraph
from tgflow.graph.events import MICRO_BATCH_END
from tgflow.train import ContinualConfig, ContinualTrainer
from tgflow.train.calibration import Calibration

CONFIG = ContinualConfig(batch_size=16, learning_rate=1e-2, mrr_negatives=3)
COLUMNS = ("logit", "probability", "rank", "anomaly")


def trainer_of(config=CONFIG, peers=None, scores=True, model=None):
    model = small_tgn() if model is None else model
    graph = TemporalGraph("undirected", 2)
    return ContinualTrainer(model, graph, config, peers=peers, scores=scores)


def columns_of(records):
    scores = [record.scores for record in records]
    return {name: torch.cat([getattr(each, name) for each in scores]) for name in COLUMNS}


def assert_same(left, right):
    for name, column in left.items():
        assert torch.equal(column.nan_to_num(-9.0), right[name].nan_to_num(-9.0)), name


def test_events_are_scored_before_the_model_learns_them():
    events, trainer = made_events(100), trainer_of()
    kept = []
    before = [p.detach().clone() for p in trainer.model.parameters()]

    def keep(seen, scores):
        at = trainer.model.parameters()
        if not kept:  # nothing was learned yet
            assert all(torch.equal(p, q) for p, q in zip(at, before, strict=True))
        assert trainer.position == scores.model_position == seen.begin
        assert torch.equal(seen.src, events.src[seen.begin : seen.end])
        kept.append(scores)

    trainer.scorer.on_scores = keep
    records = list(trainer.steps([events]))
    assert [r.scores for r in records] == kept
    assert torch.equal(torch.cat([r.eid for r in records]), torch.arange(100))
    assert [r.scores.model_position for r in records] == [r.start for r in records]
    for record in records:
        assert (1 / record.scores.rank).nanmean() == pytest.approx(record.metrics["mrr"])
        assert "scores" not in record.to_json()
    assert not torch.equal(before[0], next(trainer.model.parameters()))


def test_recording_scores_does_not_change_training():
    plain, scoring = trainer_of(scores=False), trainer_of()
    records = [list(each.steps([made_events(100)])) for each in (plain, scoring)]
    assert all(record.scores is None for record in records[0])
    assert [r.metrics for r in records[0]] == [r.metrics for r in records[1]]
    left, right = (each.checkpoint().sections for each in (plain, scoring))
    assert right.keys() - left.keys() == {"calibration"}
    for section, tensors in left.items():
        assert all(torch.equal(x, right[section][name]) for name, x in tensors.items()), section


def test_stream_can_end_a_micro_batch_early():
    events = made_events(80)
    rest = [MICRO_BATCH_END, MICRO_BATCH_END, events[20:41], MICRO_BATCH_END, events[41:]]
    records, again = (
        list(trainer_of().steps([*first, *rest]))
        for first in ([events[:20]], pieces(events[:20], 7))
    )
    spans = [(r.start, r.stop) for r in records]
    assert spans == [(0, 16), (16, 20), (20, 36), (36, 41), (41, 57), (57, 73), (73, 80)]
    assert_same(columns_of(again), columns_of(records))


@pytest.mark.parametrize("updates", [0, 1])
def test_rank_0_receives_the_scores_of_one_process(updates):
    config = replace(CONFIG, slices=4, updates=updates)
    events = made_events(66, x_dim=X_DIM)

    def learned(peers=None, model=None):
        graph = TemporalGraph("undirected", X_DIM)
        made = made_model("tgn") if model is None else model
        trainer = ContinualTrainer(made, graph, config, peers=peers, scores=True)
        return list(trainer.steps([events]))

    whole = columns_of(learned())
    models = [made_model("tgn") for _ in range(2)]
    first, second = in_threads(2, lambda peers: learned(peers, models[peers.rank]))
    assert_same(columns_of(first), whole)
    assert all(record.scores is None for record in second)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def made(size, scale, offset, seed=0):
    """Logits of as many events as negatives, with P(event) = sigmoid(scale * logit + offset).

    By rejection sampling from a common distribution: a logit is kept as an event, or as a negative,
    with its probability.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, 2 * size)
    is_event = rng.random(2 * size) < sigmoid(scale * logits + offset)
    return logits[is_event], logits[~is_event][:, None]


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (0.3, 0.5), (2.5, -1.0)])
def test_probabilities_are_calibrated_to_the_stream(scale, offset):
    calibration, logits = Calibration(), np.linspace(-4, 4, 9)
    calibration.add(*made(4_000, scale, offset))
    expected = sigmoid(scale * logits + offset)
    assert np.abs(calibration.probabilities(logits) - expected).max() < 0.03


def test_separable_logits_give_finite_probabilities():
    calibration = Calibration()
    calibration.add(np.full(500, 1e7), np.full((500, 3), -1e7))
    found = calibration.probabilities(np.array([-1e30, -1.0, 1.0, 1e30]))
    assert np.isfinite(found).all()
    assert found[0] < 0.01
    assert found[-1] > 0.99


def test_anomaly_is_the_percentage_of_higher_earlier_logits():
    calibration, rng = Calibration(), np.random.default_rng(1)
    seen = rng.normal(0, 3, 5_000)
    calibration.add(seen, np.zeros((5_000, 1)))
    asked = np.array([-50.0, -3.0, 0.0, 3.0, 50.0])
    exact = [100 * (seen > logit).mean() for logit in asked]
    assert calibration.anomalies(asked) == pytest.approx(exact, abs=0.5)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"counts": torch.zeros(3)}, r"counts is torch.float32 \(3,\)"),
        ({}, "lacks tensor 'counts'"),
        ({"counts": torch.full((2, 2049), -1.0).double()}, "has values that are not counts"),
        ({"counts": torch.full((2, 2049), math.nan).double()}, "has values that are not counts"),
    ],
)
def test_invalid_calibration_state_is_refused(section, says):
    with pytest.raises(UntrustedCheckpoint, match=f"calibration.*{says}"):
        Calibration().load(Checkpoint({"calibration": section}))
