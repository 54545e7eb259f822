"""Figures of scores that tell two classes apart, with intervals, from counts of equal scores."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgflow.resampling import NORMAL

Counts: TypeAlias = NDArray[np.int64]

RESAMPLES = 200
NUM_BINS = 4096
_WIDEST = 20.0


def group_scores(scores: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> Counts:
    """Return how often each score was given to negatives and to positives, int64 `[2, G]`.

    Args:
        scores: `[N]`; groups are of equal ones, the lowest first.
        is_positive: `[N]`.
    """
    values, group = np.unique(scores, return_inverse=True)
    flat = np.bincount(group + len(values) * is_positive, minlength=2 * len(values))
    return flat.reshape(2, -1).astype(np.int64)


def bin_scores(scores: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> Counts:
    """Return the same in `NUM_BINS` bins of equal width from logits -20 to 20."""
    share = (np.clip(scores, -_WIDEST, _WIDEST) + _WIDEST) / (2 * _WIDEST)
    group = np.minimum((share * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    flat = np.bincount(group + NUM_BINS * is_positive, minlength=2 * NUM_BINS)
    return flat.reshape(2, -1).astype(np.int64)


def ap_of(counts: Counts) -> float:
    """Return the average precision, as scikit-learn defines it; equal scores form one step."""
    return float(_aps(counts[:1], counts[1:])[0])


def auc_of(counts: Counts) -> float:
    """Return the chance that a positive scores above a negative, ties counting one half."""
    negative, positive = counts
    beaten = np.cumsum(negative) - negative / 2
    return float((positive * beaten).sum() / (positive.sum() * negative.sum()))


def auc_error(counts: Counts) -> float:
    """Return the standard error of the AUC by DeLong et al. (Biometrics, 1988).

    NaN unless there are at least two positives and two negatives.
    """
    negative, positive = (each.astype(np.float64) for each in counts)
    m, n = positive.sum(), negative.sum()
    if min(m, n) < 2:
        return math.nan
    beaten = (np.cumsum(negative) - negative / 2) / n  # of the negatives, by a positive here
    beating = (m - np.cumsum(positive) + positive / 2) / m  # of the positives, one negative here
    spread_positive = _variance(beaten, positive)
    spread_negative = _variance(beating, negative)
    return math.sqrt(spread_positive / m + spread_negative / n)


def _variance(values: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    total = counts.sum()
    mean = (values * counts).sum() / total
    return float((counts * (values - mean) ** 2).sum() / (total - 1))


def auc_interval(counts: Counts) -> tuple[float, float]:
    """Return where the AUC is with 95 %, within [0, 1]; NaN as `auc_error`."""
    auc, error = auc_of(counts), auc_error(counts)
    return max(0.0, auc - NORMAL * error), min(1.0, auc + NORMAL * error)


def ap_interval(counts: Counts, seed: int = 0) -> tuple[float, float]:
    """Return where 95 % of the APs of resampled positives and negatives are.

    Args:
        counts: At least one of each.
        seed: Of the draws.
    """
    generator = np.random.default_rng(seed)
    kept = counts[:, counts.sum(axis=0) > 0]
    drawn = [
        generator.multinomial(each.sum(), each / each.sum(), size=RESAMPLES)[:, None]
        for each in kept
    ]
    values = [_aps(negative, positive)[0] for negative, positive in zip(*drawn, strict=True)]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _aps(negative: Counts, positive: Counts) -> NDArray[np.float64]:
    """Return the average precision of each row of counts, `[R, G]`."""
    true = np.cumsum(positive[:, ::-1], axis=1)
    found = true + np.cumsum(negative[:, ::-1], axis=1)
    precision = true / np.maximum(found, 1)
    aps: NDArray[np.float64] = (precision * positive[:, ::-1]).sum(axis=1) / true[:, -1]
    return aps
