"""The course of a run's metrics in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

MEAN_OVER_BATCHES = ("ap", "auc")
"""Metrics averaged over batches; the others are averaged over events."""


@dataclass(slots=True)
class Stretch:
    """Some consecutive batches, summed up."""

    start: int
    """Position of the first event."""
    stop: int
    """Position after the last event."""
    sums: dict[str, list[float]]
    """Weighted sum and weight by metric."""


@dataclass(slots=True)
class Timeline:
    """Metrics along a stream, from which the mean of any late part can be told.

    Holds up to `capacity` stretches, of one batch each at first. When they are full, neighbors are
    joined two by two, so memory stays bounded however long the stream, and a part's start is known
    to one stretch.
    """

    capacity: int = 4096  # even
    batches_per_stretch: int = 1
    stretches: list[Stretch] = field(default_factory=list)
    last_batches: int = 0
    """Batches in the last stretch."""
    total: Stretch = field(default_factory=lambda: Stretch(0, 0, {}))
    """All stretches, summed up."""

    def plain(self) -> dict[str, Any]:
        """Return what `of` takes back, as plain values: a copy."""
        return {
            "capacity": self.capacity,
            "batches_per_stretch": self.batches_per_stretch,
            "stretches": [_plain(stretch) for stretch in self.stretches],
            "last_batches": self.last_batches,
            "total": _plain(self.total),
        }

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Timeline:
        """Return the timeline that `plain` turned into `saved`."""
        stretches = [Stretch(**stretch) for stretch in saved["stretches"]]
        return cls(**saved | {"stretches": stretches, "total": Stretch(**saved["total"])})

    def add(self, start: int, stop: int, metrics: dict[str, float]) -> None:
        """Take in one batch of events `[start, stop)`, which follow those before; no NaN."""
        sums = {
            name: [value * weight, weight]
            for name, value in metrics.items()
            for weight in [1.0 if name in MEAN_OVER_BATCHES else float(stop - start)]
        }
        _join(self.total, Stretch(start, stop, sums))
        if self.stretches and self.last_batches < self.batches_per_stretch:
            _join(self.stretches[-1], Stretch(start, stop, sums))
            self.last_batches += 1
            return
        if len(self.stretches) == self.capacity:
            self._halve()
        self.stretches.append(Stretch(start, stop, sums))
        self.last_batches = 1

    def mean(self, since: int | None = None) -> dict[str, float]:
        """Return the mean of each metric over the stretches that start at event `since` or later.

        Without `since`, over all of them, at no cost.
        """
        total = self.total
        if since is not None:
            total = Stretch(0, 0, {})
            for stretch in self.stretches:
                if stretch.start >= since:
                    _join(total, stretch)
        return {name: value / weight for name, (value, weight) in total.sums.items()}

    def tail_start(self, share: float) -> int:
        """Return where the last `share` of the events starts, rounded up to a stretch's start.

        The last stretch always belongs to it; 0 without events.
        """
        if not self.stretches:
            return 0
        first, end = self.stretches[0].start, self.stretches[-1].stop
        ideal = end - math.floor(share * (end - first))
        starts = [stretch.start for stretch in self.stretches]
        return next((start for start in starts if start >= ideal), starts[-1])

    def _halve(self) -> None:
        pairs = zip(self.stretches[::2], self.stretches[1::2], strict=True)
        self.stretches = [_join(left, right) for left, right in pairs]
        self.batches_per_stretch *= 2


def _plain(stretch: Stretch) -> dict[str, Any]:
    sums = {name: list(pair) for name, pair in stretch.sums.items()}
    return {"start": stretch.start, "stop": stretch.stop, "sums": sums}


def _join(left: Stretch, right: Stretch) -> Stretch:
    """Take `right`, which follows `left`, into it."""
    left.stop = right.stop
    for name, (value, weight) in right.sums.items():
        old = left.sums.setdefault(name, [0.0, 0.0])
        old[0] += value
        old[1] += weight
    return left
