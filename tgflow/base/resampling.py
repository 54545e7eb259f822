"""Bootstrap means of dependent values, and their intervals.

Consecutive values may be correlated, so blocks of consecutive ones are resampled: the
circular moving-block bootstrap (Politis and Romano, 1992).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]

RESAMPLES = 2_000
LEVEL = 0.05
NORMAL = 1.96
"""Standard errors from a mean to the end of its interval, for `LEVEL`."""
_AT_ONCE = 1 << 22
"""Block sums looked up at once."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and the interval of 95 % of its resampled means."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, mean: float, resampled: Values) -> Interval:
        """Return the percentile interval of resampled means."""
        low, high = np.quantile(resampled, [LEVEL / 2, 1 - LEVEL / 2])
        return cls(float(mean), float(low), float(high))


class Resampling:
    """Draws of blocks and seeds, shared by all compared values."""

    def __init__(
        self, num: int, length: int, num_resamples: int = RESAMPLES, seed: int = 0
    ) -> None:
        if num < 1:
            raise ValueError("there is nothing to resample")
        self.num, self.length = num, min(length, num)
        generator = np.random.default_rng(seed)
        self.num_blocks = math.ceil(num / self.length)
        self._starts = generator.integers(num, size=(num_resamples, self.num_blocks))
        self._seeds = generator.random((num_resamples, 64))

    def means(self, values: Values, weights: Values | None = None) -> Values:
        """Return the mean of each resample, `[R]`, scaled to the spread of true means.

        NaN where weights of a resample are all 0.
        """
        weight = np.ones(self.num) if weights is None else weights
        count = self._sums(weight)
        with np.errstate(invalid="ignore", divide="ignore"):
            by_seed = np.stack([self._sums(row * weight) / count for row in values])
        num_seeds = len(values)
        drawn = (self._seeds[:, :num_seeds] * num_seeds).astype(np.int64).T
        chosen: Values = np.take_along_axis(by_seed, drawn, axis=0).mean(axis=0)
        center = float((values * weight).sum(axis=1).mean() / max(weight.sum(), 1e-300))
        return center + self._stretch * (chosen - center)

    @property
    def _stretch(self) -> float:
        """Scale factor from the spread of resamples to that of means, as blocks are few."""
        free = max(self.num_blocks - 1, 1)
        return math.sqrt(1 + 1 / free) * (1 + (NORMAL**2 + 1) / (4 * free))

    def _sums(self, values: Values) -> Values:
        """Return the sum of all blocks of each resample, `[R]`; blocks wrap around."""
        around = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[: self.length]]))])
        block = around[self.length :] - around[: -self.length]
        rows = max(1, _AT_ONCE // self.num_blocks)
        parts = [
            block[self._starts[i : i + rows]].sum(axis=1) for i in range(0, len(self._starts), rows)
        ]
        return np.concatenate(parts)
