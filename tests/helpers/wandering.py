"""Autocorrelated noise, like the scores of consecutive events."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def wandering(rng: np.random.Generator, size: int, memory: float = 0.9) -> NDArray[np.float64]:
    """Return noise of variance 1 whose neighbors are correlated by `memory`."""
    noise = rng.standard_normal(size)
    out = np.empty(size)
    last = rng.standard_normal()
    for i, step in enumerate(noise):
        last = memory * last + np.sqrt(1 - memory**2) * step
        out[i] = last
    return out
