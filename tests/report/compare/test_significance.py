"""Tests of intervals and p-values of differences between models."""

import numpy as np
import pytest

from helpers.effort import slow
from tgflow.base.resampling import Resampling
from tgflow.report.compare.significance import compare_means, holm


def wandering(rng, size, memory=0.9):
    """Return noise of variance 1 whose neighbors are correlated by `memory`."""
    noise = rng.standard_normal(size)
    out = np.empty(size)
    last = rng.standard_normal()
    for i, step in enumerate(noise):
        last = memory * last + np.sqrt(1 - memory**2) * step
        out[i] = last
    return out


def test_copies_of_a_model_differ_by_exactly_zero():
    values = np.random.default_rng(0).random((3, 5_000))
    found = compare_means({"one": values, "two": values.copy()}, num_resamples=200)
    [difference] = found.differences
    interval = difference.interval
    assert (interval.mean, interval.low, interval.high) == (0.0, 0.0, 0.0)
    assert difference.chance == 0.5
    assert difference.p_holm == 1.0
    assert found.p_of_best("one") is None
    assert found.p_of_best("two") == 1.0


def test_better_model_is_found():
    rng = np.random.default_rng(1)
    common = np.stack([wandering(rng, 6_000) for _ in range(3)])
    better = common + 0.02 + 0.05 * rng.standard_normal(common.shape)
    found = compare_means({"plain": common, "better": better}, num_resamples=400)
    [difference] = found.differences
    assert (difference.first, difference.second) == ("better", "plain")
    assert difference.is_significant
    assert 0 < difference.interval.low < 0.02 < difference.interval.high
    assert found.p_of_best("better") is None
    assert found.p_of_best("plain") == difference.p_holm < 0.05
    # unpaired, the difference would be lost in shared noise
    assert found.means["better"].low < found.means["plain"].high


def coverage(runs, size, num_resamples):
    """Return the coverage of the confidence interval of a difference."""
    hits = 0
    for run in range(runs):
        rng = np.random.default_rng(run)
        first, second = wandering(rng, size) + 0.1, wandering(rng, size)
        found = compare_means(
            {"first": first[None], "second": second[None]}, num_resamples=num_resamples, seed=run
        )
        interval = found.between("first", "second").interval
        sign = 1 if found.differences[0].first == "first" else -1
        hits += interval.low <= sign * 0.1 <= interval.high
    return hits / runs


@pytest.mark.parametrize(
    ("size", "least", "most"),
    [((40, 3_000, 200), 0.85, 1.0), slow((600, 6_000, 1_000), 0.92, 0.98)],
)
def test_confidence_interval_has_its_nominal_coverage(size, least, most):
    assert least <= coverage(*size) <= most


def test_events_of_weight_zero_are_ignored():
    weights = (np.arange(100) < 50).astype(float)
    drawn = Resampling(100, 1, 200).means(np.arange(100.0)[None], weights)
    assert drawn.max() < 50
    assert drawn.mean() == pytest.approx(24.5, abs=1)


def test_holm_correction_matches_a_hand_computed_example():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_values_of_other_events_are_refused():
    with pytest.raises(ValueError, match="same events"):
        compare_means({"one": np.zeros((1, 4)), "two": np.zeros((1, 5))})
    with pytest.raises(ValueError, match="nothing to resample"):
        compare_means({"one": np.zeros((1, 0))})
