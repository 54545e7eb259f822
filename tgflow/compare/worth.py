"""What it is worth to a model to go on learning: how far it is ahead of its frozen copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tgflow.compare.significance import LEAST_OF_PART, block_length, chance_above
from tgflow.resampling import RESAMPLES, Interval, Resampling, Values


@dataclass(frozen=True, slots=True)
class Worth:
    """A model's mean reciprocal rank less that of its frozen copy, of the same events and seeds."""

    copy: str
    origin: str
    num_events: int
    """Events from where on the copy learns no more."""
    since: Interval
    """Over those events."""
    chance: float
    """Share of the resamples in which it is above 0; ties count one half."""
    windows: list[Interval]
    """Over each window of all events: 0 before the copy was made."""


def worth_of(
    copy: str,
    origin: str,
    gains: Values,
    frozen_at: int,
    windows: Sequence[slice],
    num_resamples: int = RESAMPLES,
) -> Worth:
    """Return what it is worth to go on learning, with intervals by a paired block bootstrap.

    Args:
        copy: Label of the copy.
        origin: Of the model.
        gains: `[S, N]`: of each seed and event, the model's reciprocal rank less the copy's.
        frozen_at: The event from which on the copy learns no more, below `N`.
        windows: Parts of the events.
        num_resamples: Of the bootstrap.
    """
    late = gains[:, frozen_at:]
    resampling = Resampling(late.shape[1], block_length(late.shape[1]), num_resamples)
    drawn = resampling.means(late)
    return Worth(
        copy,
        origin,
        late.shape[1],
        Interval.of(late.mean(), drawn),
        chance_above(drawn),
        list(_by_window(gains, windows, num_resamples)),
    )


def _by_window(gains: Values, windows: Sequence[slice], num_resamples: int) -> Iterator[Interval]:
    """Yield the interval of each window, of blocks of its own events."""
    drawings: dict[int, Resampling] = {}
    for window in windows:
        part = gains[:, window]
        size = part.shape[1]
        if size not in drawings:  # windows have one of two sizes
            length = block_length(size, least=LEAST_OF_PART)
            drawings[size] = Resampling(size, length, num_resamples)
        yield Interval.of(float(np.mean(part)), drawings[size].means(part))
