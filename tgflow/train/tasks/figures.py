"""Metrics of predicted labels: accuracy, macro-F1, MRR, AUC and AP, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tgflow.base.metrics import ranks
from tgflow.base.resampling import NORMAL

Counts: TypeAlias = NDArray[np.int64]
"""Counts of equal scores of negatives and of positives, `[2, G]`, the lowest first."""

RESAMPLES = 200
NUM_BINS = 4096
EXACT = 1 << 22
"""Scores of a stream up to which AUC and AP are exact; those of more are of `NUM_BINS` bins."""
RECENT_HALF_LIFE = 20.0
"""Half-life of scores in the recent AP, in micro-batches."""
_WIDEST = 20.0


class LabelFigures:
    """Accumulates predicted labels, equally weighted; intervals take events as independent.

    Keeps all scores if `pooled`, or else the first `EXACT`, of 9 bytes each, and bins of equal
    width, which intervals, calibration and recent figures are of.
    """

    def __init__(self, num_classes: int, *, pooled: bool) -> None:
        self.num_classes, self._pooled = num_classes, pooled
        self._cells = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        """Confusion matrix: true class, predicted class."""
        self._ranks = torch.zeros(2, dtype=torch.float64)
        self._bins = torch.zeros(2, NUM_BINS, dtype=torch.int64)
        self._recent = torch.zeros(2, NUM_BINS, dtype=torch.float64)
        """The same, with exponential decay."""
        self._pool: list[tuple[Tensor, Tensor]] = []

    def add(self, label: Tensor, classes: Tensor) -> dict[str, float]:
        """Add events; return their accuracy, and of more than two classes MRR."""
        if not len(label):
            return {}
        predicted = classes.argmax(1)
        cells = torch.bincount(label * self.num_classes + predicted, minlength=self._cells.numel())
        self._cells += cells.view_as(self._cells)
        reciprocal = 1 / ranks_of(label, classes)
        self._ranks += torch.stack([reciprocal.sum(), (reciprocal**2).sum()])
        out = {"accuracy": float((predicted == label).double().mean())}
        if self.num_classes > 2:
            return out | {"mrr": float(reciprocal.mean())}
        self.add_scores(odds_of(classes), label == 1)
        return out

    def add_scores(self, score: Tensor, is_positive: Tensor) -> None:
        """Add scores of two classes alone: float64 `[B]` and bool `[B]`."""
        if not self._pooled:
            added = torch.from_numpy(bin_scores(score.numpy(), is_positive.numpy()))
            self._bins += added
            self._recent.mul_(0.5 ** (1 / RECENT_HALF_LIFE)).add_(added)
        if self._is_exact:
            self._pool.append((score, is_positive))
        else:
            self._pool.clear()

    def aps(self) -> tuple[float, float] | None:
        """Return the AP of recent scores and of all; None unless both classes occurred."""
        if not self._bins.any(dim=1).all():
            return None
        recent, whole = (_aps(x[:1], x[1:]) for x in (self._recent.numpy(), self._bins.numpy()))
        return float(recent[0]), float(whole[0])

    def result(self, *, with_intervals: bool) -> dict[str, float]:
        """Return the figures by name; an interval of `x` is `x_low` and `x_high`."""
        return {**self._class_figures(with_intervals), **self._score_figures(with_intervals)}

    def _class_figures(self, with_intervals: bool) -> dict[str, float]:
        num = int(self._cells.sum())
        if not num:
            return {}
        cells = self._cells.numpy()
        mrr = float(self._ranks[0]) / num
        out = {"accuracy": accuracy_of(cells), "macro_f1": macro_f1_of(cells), "mrr": mrr}
        if self.num_classes == 2:
            del out["mrr"]
        if with_intervals:
            out |= _ends(cells)
            if "mrr" in out:
                spread = max(0.0, float(self._ranks[1]) / num - mrr**2)
                half = NORMAL * (spread / num) ** 0.5
                out |= {"mrr_low": mrr - half, "mrr_high": mrr + half}
        return out

    def _score_figures(self, with_intervals: bool) -> dict[str, float]:
        counts = self._counts()
        found = {"num_positives": counts[1].sum(), "num_labels": counts.sum()}
        num = {name: float(x) for name, x in found.items()} if counts.any() else {}
        if not counts.any(axis=1).all():
            return num
        out = num | {"auc": auc_of(counts), "ap": float(_aps(counts[:1], counts[1:])[0])}
        if with_intervals:
            half = NORMAL * auc_error(counts)
            out |= {"auc_low": max(0.0, out["auc"] - half), "auc_high": min(1.0, out["auc"] + half)}
            binned = counts if self._pooled else self._bins.numpy()
            out["ap_low"], out["ap_high"] = ap_interval(binned)
            if not self._pooled:
                out |= {f"calibration.{tenth}": x for tenth, x in calibration_of(binned).items()}
                marks = [m * 10**i for i in range(19) for m in (1, 2, 5)]
                sizes = [k for k in marks if k <= counts.sum()]
                shares = precision_at(counts, sizes).tolist()
                out |= {f"precision_at.{k}": x for k, x in zip(sizes, shares, strict=True)}
        return {name: value for name, value in out.items() if not np.isnan(value)}

    def _counts(self) -> Counts:
        """Return the counts of each score for negatives and for positives, the lowest first."""
        if not self._is_exact:
            return self._bins.numpy()
        return group_scores(*(part.numpy() for part in self.pool()))

    @property
    def has_any(self) -> bool:
        return bool(self._cells.any() or self._bins.any())

    @property
    def _is_exact(self) -> bool:
        return self._pooled or int(self._bins.sum()) <= EXACT

    def pool(self) -> tuple[Tensor, Tensor]:
        """Return the scores that are kept, float64 `[N]`, and whether each is positive."""
        score, is_positive = zip(*self._pool, strict=True) if self._pool else ((), ())
        none = torch.zeros(0, dtype=torch.float64)
        self._pool = [(torch.cat([none, *score]), torch.cat([none.bool(), *is_positive]))]
        return self._pool[0]

    def load_pool(self, score: Tensor, is_positive: Tensor) -> None:
        """Restore `pool` of a saved state, after `load_state_dict`; ValueError for another one."""
        found = bin_scores(score.numpy(), is_positive.numpy())
        if self._is_exact and not np.array_equal(found, self._bins.numpy()):
            raise ValueError("the scores of labels differ from the counts beside them")
        self._pool = [(score, is_positive)]

    def state_dict(self) -> dict[str, Tensor]:
        kept = {"cells": self._cells, "ranks": self._ranks}
        kept |= {"bins": self._bins, "recent": self._recent}
        return {name: x.clone() for name, x in kept.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state["cells"].shape != self._cells.shape:
            was, now = len(state["cells"]), self.num_classes
            raise ValueError(f"the saved figures have {was} classes, not {now}")
        self._cells, self._ranks = state["cells"].clone(), state["ranks"].clone()
        self._bins, self._recent = state["bins"].clone(), state["recent"].clone()


def odds_of(classes: Tensor) -> Tensor:
    """Return the logit of label 1 of two, float64 `[B]` of float32 logits `[B, 2]`, exactly."""
    return classes[:, 1].double() - classes[:, 0].double()


def ranks_of(label: Tensor, classes: Tensor) -> Tensor:
    """Return the rank of each true class, 1 the best; ties take the middle. float64 `[B]`."""
    own = classes.gather(1, label.unsqueeze(1))
    return ranks(own.squeeze(1), classes) - 0.5  # its own score counts among the equal ones


def accuracy_of(cells: NDArray[np.int64]) -> float:
    """Return the share of events in the diagonal of `[C, C]` cells (true, predicted)."""
    return float(np.trace(cells) / cells.sum())


def macro_f1_of(cells: NDArray[np.int64]) -> float:
    """Return the mean F1 of the classes that occur or are predicted, as in scikit-learn."""
    occurs, predicted = cells.sum(axis=1), cells.sum(axis=0)
    is_there = occurs + predicted > 0
    return float((2 * np.diag(cells)[is_there] / (occurs + predicted)[is_there]).mean())


def _ends(cells: NDArray[np.int64]) -> dict[str, float]:
    generator, size = np.random.default_rng(0), len(cells)
    place = np.flatnonzero(cells)
    share = cells.flat[place] / cells.sum()
    found = []
    for counts in generator.multinomial(int(cells.sum()), share, size=RESAMPLES):
        drawn = np.zeros(size**2, dtype=np.int64)
        drawn[place] = counts
        found.append((accuracy_of(square := drawn.reshape(size, size)), macro_f1_of(square)))
    low, high = np.quantile(found, [0.025, 0.975], axis=0)
    return {
        f"{name}_{end}": float(value)
        for end, values in (("low", low), ("high", high))
        for name, value in zip(("accuracy", "macro_f1"), values, strict=True)
    }


def group_scores(scores: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> Counts:
    """Return the counts of each score for negatives and for positives, int64 `[2, G]`."""
    values, group = np.unique(scores, return_inverse=True)
    flat = np.bincount(group + len(values) * is_positive, minlength=2 * len(values))
    return flat.reshape(2, -1).astype(np.int64)


def bin_scores(scores: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> Counts:
    """Return the same in `NUM_BINS` bins of equal width from logits -20 to 20."""
    share = (np.clip(scores, -_WIDEST, _WIDEST) + _WIDEST) / (2 * _WIDEST)
    group = np.minimum((share * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    flat = np.bincount(group + NUM_BINS * is_positive, minlength=2 * NUM_BINS)
    return flat.reshape(2, -1).astype(np.int64)


def auc_of(counts: Counts) -> float:
    """Return the probability that a positive scores above a negative, ties counting one half."""
    negative, positive = counts
    beaten = np.cumsum(negative) - negative / 2
    return float((positive * beaten).sum() / (positive.sum() * negative.sum()))


def auc_error(counts: Counts) -> float:
    """Return the standard error of the AUC by DeLong et al. (Biometrics, 1988)."""
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


def ap_interval(counts: Counts) -> tuple[float, float]:
    generator = np.random.default_rng(0)
    kept = counts[:, counts.sum(axis=0) > 0]
    drawn = [
        generator.multinomial(each.sum(), each / each.sum(), size=RESAMPLES)[:, None]
        for each in kept
    ]
    values = [_aps(negative, positive)[0] for negative, positive in zip(*drawn, strict=True)]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def calibration_of(counts: Counts) -> dict[int, float]:
    """Return the share of positives in each tenth of predicted probability, of `bin_scores`."""
    logit = (np.arange(NUM_BINS) + 0.5) * (2 * _WIDEST / NUM_BINS) - _WIDEST
    tenth = np.minimum(10 / (1 + np.exp(-logit)), 9).astype(np.int64)
    negative, positive = (np.bincount(tenth, each, minlength=10) for each in counts)
    total = negative + positive
    return {int(i): float(positive[i] / total[i]) for i in np.flatnonzero(total)}


def precision_at(counts: Counts, num: Sequence[int]) -> NDArray[np.float64]:
    """Return the share of positives among numbers of events of the highest scores.

    Of equal scores that only fit in part, positives count in proportion: the mean over all orders.
    """
    kept = counts[:, counts.sum(axis=0) > 0][:, ::-1]
    found = np.cumsum(np.concatenate([np.zeros((2, 1)), kept], axis=1), axis=1)
    positives = np.interp(num, found.sum(axis=0), found[1])
    return np.asarray(positives / np.asarray(num))


def _aps(negative: NDArray[Any], positive: NDArray[Any]) -> NDArray[np.float64]:
    true = np.cumsum(positive[:, ::-1], axis=1)
    found = true + np.cumsum(negative[:, ::-1], axis=1)
    precision = true / np.where(found > 0, found, 1)
    aps: NDArray[np.float64] = (precision * positive[:, ::-1]).sum(axis=1) / true[:, -1]
    return aps
