"""What logits stand for: by those that came before, and by nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tgflow.checkpoint import Checkpoint, UntrustedCheckpoint
from tgflow.train.calibration import Calibration


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def made(size, scale, offset, seed=0):
    """Logits of events and of negatives, as many, with P(event) = sigmoid(scale * logit + offset).

    Whoever draws either with the same chance has to reject some: a logit is kept as an event, or as
    a negative, with its probability.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, 2 * size)
    is_event = rng.random(2 * size) < sigmoid(scale * logits + offset)
    return logits[is_event], logits[~is_event][:, None]


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (0.3, 0.5), (2.5, -1.0)])
def test_probabilities_become_those_of_the_stream(scale, offset):
    calibration, logits = Calibration(), np.linspace(-4, 4, 9)
    calibration.add(*made(4_000, scale, offset))
    expected = sigmoid(scale * logits + offset)
    assert np.abs(calibration.probabilities(logits) - expected).max() < 0.03


def test_logits_that_tell_all_give_probabilities_that_are_finite():
    calibration = Calibration()
    calibration.add(np.full(500, 1e7), np.full((500, 3), -1e7))
    found = calibration.probabilities(np.array([-1e30, -1.0, 1.0, 1e30]))
    assert np.isfinite(found).all()
    assert found[0] < 0.01
    assert found[-1] > 0.99


def test_an_anomaly_is_the_percentage_of_higher_logits_before():
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
        ({"counts": torch.full((2, 2049), -1.0).double()}, "has values that count nothing"),
        ({"counts": torch.full((2, 2049), math.nan).double()}, "has values that count nothing"),
    ],
)
def test_what_was_never_saved_is_refused(section, says):
    with pytest.raises(UntrustedCheckpoint, match=f"calibration.*{says}"):
        Calibration().load(Checkpoint({"calibration": section}))
