"""How well labels were predicted: accuracy, macro-F1, MRR, AUC and AP, with intervals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tgflow.metrics import ranks
from tgflow.resampling import NORMAL
from tgflow.tasks import scores


class LabelFigures:
    """Sums up predicted labels; events count alike, and intervals take them as independent.

    Args:
        num_classes: Classes, at least 2.
        pooled: Keep each score of two classes, 9 bytes an event, for exact AUC and AP; otherwise
            they are of `tgflow.tasks.scores.NUM_BINS` bins, which differ by some 1e-4.
    """

    def __init__(self, num_classes: int, *, pooled: bool) -> None:
        self.num_classes = num_classes
        self._cells = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        """How often each class was predicted as which."""
        self._ranks = torch.zeros(2, dtype=torch.float64)
        """Sums of the reciprocal ranks, and of their squares."""
        self._bins = torch.zeros(2, scores.NUM_BINS, dtype=torch.int64)
        self._pool: list[tuple[NDArray[np.float64], NDArray[np.bool_]]] | None = (
            [] if pooled else None
        )

    def add(self, label: Tensor, classes: Tensor) -> dict[str, float]:
        """Take in some events, and return accuracy and, of more than two classes, MRR of these.

        Args:
            label: Their classes, int64 `[B]`.
            classes: What each class got, float `[B, num_classes]`; the highest is predicted, of
                equal ones the first.
        """
        if not len(label):
            return {}
        predicted = classes.argmax(1)
        cells = torch.bincount(label * self.num_classes + predicted, minlength=self._cells.numel())
        self._cells += cells.view_as(self._cells)
        reciprocal = 1 / ranks_of(label, classes)
        self._ranks += torch.stack([reciprocal.sum(), (reciprocal**2).sum()])
        if self.num_classes == 2:
            self.add_scores((classes[:, 1] - classes[:, 0]).double(), label == 1)
        mrr = {"mrr": float(reciprocal.mean())} if self.num_classes > 2 else {}
        return {"accuracy": float((predicted == label).double().mean()), **mrr}

    def add_scores(self, score: Tensor, is_positive: Tensor) -> None:
        """Take in scores of two classes alone: float64 `[B]` and bool `[B]`."""
        pair = score.numpy(), is_positive.numpy()
        if self._pool is None:
            self._bins += torch.from_numpy(scores.bin_scores(*pair))
        else:
            self._pool.append(pair)

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
        num = {"num_positives": float(counts[1].sum())} if counts.sum() else {}
        if not counts.any(axis=1).all():
            return num
        out = num | {"auc": scores.auc_of(counts), "ap": scores.ap_of(counts)}
        if with_intervals:
            out["auc_low"], out["auc_high"] = scores.auc_interval(counts)
            out["ap_low"], out["ap_high"] = scores.ap_interval(counts)
        return {name: value for name, value in out.items() if not np.isnan(value)}

    def _counts(self) -> scores.Counts:
        """Return how often scores were given to negatives and to positives, the lowest first."""
        if self._pool is None:
            return self._bins.numpy()
        if not self._pool:
            return np.zeros((2, 0), dtype=np.int64)
        score, is_positive = (np.concatenate(part) for part in zip(*self._pool, strict=True))
        return scores.group_scores(score, is_positive)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what `load_state_dict` takes back: copies. Pooled scores are not in it."""
        kept = {"cells": self._cells, "ranks": self._ranks, "bins": self._bins}
        return {name: x.clone() for name, x in kept.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Become what was saved.

        Raises:
            ValueError: If it is of other classes.
        """
        if state["cells"].shape != self._cells.shape:
            was, now = len(state["cells"]), self.num_classes
            raise ValueError(f"the figures that were saved are of {was} classes, not of {now}")
        self._cells, self._ranks = state["cells"].clone(), state["ranks"].clone()
        self._bins = state["bins"].clone()


def ranks_of(label: Tensor, classes: Tensor) -> Tensor:
    """Return the rank of each true class, 1 the best; ties take the middle. float64 `[B]`."""
    own = classes.gather(1, label.unsqueeze(1))
    return ranks(own.squeeze(1), classes) - 0.5  # its own score is one of the equal ones


def accuracy_of(cells: NDArray[np.int64]) -> float:
    """Return the share of events in the diagonal of `[C, C]` cells (true, predicted)."""
    return float(np.trace(cells) / cells.sum())


def macro_f1_of(cells: NDArray[np.int64]) -> float:
    """Return the mean F1 of the classes that occur or are predicted, as scikit-learn has it."""
    occurs, predicted = cells.sum(axis=1), cells.sum(axis=0)
    is_there = occurs + predicted > 0
    return float((2 * np.diag(cells)[is_there] / (occurs + predicted)[is_there]).mean())


def _ends(cells: NDArray[np.int64]) -> dict[str, float]:
    """Return where 95 % of the figures of resampled events are: accuracy and macro-F1."""
    generator, size = np.random.default_rng(0), len(cells)
    place = np.flatnonzero(cells)
    share = cells.flat[place] / cells.sum()
    found = []
    for counts in generator.multinomial(int(cells.sum()), share, size=scores.RESAMPLES):
        drawn = np.zeros(size**2, dtype=np.int64)
        drawn[place] = counts
        found.append((accuracy_of(square := drawn.reshape(size, size)), macro_f1_of(square)))
    low, high = np.quantile(found, [0.025, 0.975], axis=0)
    return {
        f"{name}_{end}": float(value)
        for end, values in (("low", low), ("high", high))
        for name, value in zip(("accuracy", "macro_f1"), values, strict=True)
    }
