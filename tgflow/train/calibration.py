"""Calibration of logits by the scores of a stream so far: probability and anomaly."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tgflow.checkpoint import Checkpoint, Component, UntrustedCheckpoint
from tgflow.checkpoint.tensors import check_like

Values: TypeAlias = NDArray[np.float64]

HALF_LIFE = 10_000.0
"""Half-life of a score's weight, in events."""
_NUM_BINS = 2049  # odd: logits of zero are in the middle of one
_REACH = 15.0
"""Bins have equal width in asinh(logit), from minus to plus this: logits of 1.6e6."""
_CENTERS = np.sinh(np.linspace(-_REACH, _REACH, _NUM_BINS))
_NEWTON_STEPS = 25
_CONVERGED = 1e-9


class Calibration(Component):
    """Histograms of the logits of events and of their negatives, with exponential decay.

    Probabilities are Platt's (1999): sigmoid(a * logit + b), with `a` and `b` fitted to the
    histograms and regularized toward 1 and 0 while these hold little. So a probability is that of
    an event against one negative of its kind. `a` and `b` depend on the histograms alone, so only
    these are saved; bins are 1.5 % of a logit wide, and 0.015 near zero.

    Thread-safe: any thread may read while one adds.
    """

    name = "calibration"

    def __init__(self) -> None:
        self._counts = np.zeros((2, _NUM_BINS))
        self._fit: tuple[Values, tuple[float, float]] | None = None

    def probabilities(self, logits: Values) -> Values:
        """Return the probability of an event at each logit, in [0, 1], by the scores so far."""
        counts, fit = self._counts, self._fit
        if fit is None or fit[0] is not counts:
            fit = self._fit = counts, _fitted(counts)
        scale, offset = fit[1]
        return _sigmoid(scale * logits + offset)

    def anomalies(self, logits: Values) -> Values:
        """Return the percentage of the events added so far with a higher logit, NaN without any.

        Events in the same bin count one half.
        """
        events = self._counts[0]
        total = events.sum()
        if not total:
            return np.full(len(logits), np.nan)
        above = total - np.cumsum(events)
        bins = _bins(logits)
        shares: Values = (above[bins] + events[bins] / 2) / total
        return 100 * shares

    def add(self, positive: Values, negative: Values) -> None:
        """Add the logits of events, `[B]`, and of their negatives, `[B, m]`."""
        counts = self._counts * 0.5 ** (len(positive) / HALF_LIFE)
        counts[0] += np.bincount(_bins(positive), minlength=_NUM_BINS)
        if negative.size:
            weight = 1 / negative.shape[1]
            counts[1] += weight * np.bincount(_bins(negative.ravel()), minlength=_NUM_BINS)
        self._counts = counts

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the histograms."""
        return {"counts": torch.from_numpy(self._counts.copy())}

    def save(self, writer: Checkpoint) -> None:
        writer.put(self.name, self.state_dict())

    def load(self, reader: Checkpoint) -> None:
        self.load_state_dict(reader.get(self.name))

    def load_state_dict(self, found: dict[str, Tensor]) -> None:
        """Replace the histograms; raises `UntrustedCheckpoint` if they are invalid."""
        check_like(self.name, found, {"counts": torch.from_numpy(self._counts)})
        counts: Values = found["counts"].numpy().copy()
        if not (np.isfinite(counts).all() and (counts >= 0).all()):
            raise UntrustedCheckpoint(f"{self.name}: counts has values that are not counts")
        self._counts = counts


def _bins(logits: Values) -> NDArray[np.int64]:
    place = np.rint((np.arcsinh(logits) / _REACH + 1) * ((_NUM_BINS - 1) / 2))
    return np.clip(place, 0, _NUM_BINS - 1).astype(np.int64)


def _fitted(counts: Values) -> tuple[float, float]:
    """Return scale and offset of the logits by Newton's method, halving steps that overshoot."""
    used = np.flatnonzero(counts.sum(0))
    x, (events, others) = _CENTERS[used], counts[:, used]
    x = np.stack([x, np.ones_like(x)])
    prior = at = np.array([1.0, 0.0])

    def cost(at: Values) -> float:
        z = at @ x
        entropy = events @ np.logaddexp(0, -z) + others @ np.logaddexp(0, z)
        return float(entropy + ((at - prior) ** 2).sum() / 2)

    found = cost(at)
    for _ in range(_NEWTON_STEPS):
        p = _sigmoid(at @ x)
        slope = x @ ((events + others) * p - events) + at - prior
        curve = (x * ((events + others) * p * (1 - p))) @ x.T + np.eye(2)
        step = np.linalg.solve(curve, slope)
        while (then := cost(at - step)) > found and np.abs(step).max() > _CONVERGED:
            step = step / 2
        if then > found or np.abs(step).max() <= _CONVERGED:
            break
        at, found = at - step, then
    return float(at[0]), float(at[1])


def _sigmoid(z: Values) -> Values:
    out: Values = 0.5 * (1 + np.tanh(0.5 * z))
    return out
