"""The course of a run's metrics in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tgflow.metrics import MEAN_OVER_BATCHES


@dataclass(slots=True)
class Segment:
    """Some consecutive batches, summed up."""

    start: int
    """Position of the first event."""
    stop: int
    """Position after the last event."""
    sums: dict[str, tuple[float, float]]
    """Weighted sum and weight by metric."""


@dataclass(slots=True)
class Timeline:
    """Metrics along a stream, from which the mean of any late part follows.

    Holds up to `capacity` segments, of one batch each at first. When they are full, neighbors are
    joined two by two, so memory stays bounded however long the stream, and a part's start is known
    to one segment.
    """

    capacity: int = 4096  # even
    batches_per_segment: int = 1
    segments: list[Segment] = field(default_factory=list)
    last_batches: int = 0
    """Batches in the last segment."""
    total: Segment = field(default_factory=lambda: Segment(0, 0, {}))
    """All segments, summed up."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values of which `read_as` makes it again: a copy."""
        return {
            "capacity": self.capacity,
            "batches_per_segment": self.batches_per_segment,
            "segments": [_segment_to_json(segment) for segment in self.segments],
            "last_batches": self.last_batches,
            "total": _segment_to_json(self.total),
        }

    def add(self, start: int, stop: int, metrics: dict[str, float]) -> None:
        """Take in one batch of events `[start, stop)`, which follow those before; no NaN."""
        sums = {
            name: (value * weight, weight)
            for name, value in metrics.items()
            for weight in [1.0 if name in MEAN_OVER_BATCHES else float(stop - start)]
        }
        _join(self.total, Segment(start, stop, sums))
        if self.segments and self.last_batches < self.batches_per_segment:
            _join(self.segments[-1], Segment(start, stop, sums))
            self.last_batches += 1
            return
        if len(self.segments) == self.capacity:
            self._halve()
        self.segments.append(Segment(start, stop, sums))
        self.last_batches = 1

    def mean(self, since: int | None = None) -> dict[str, float]:
        """Return the mean of each metric over the segments that start at event `since` or later.

        Without `since`, over all of them, at no cost.
        """
        total = self.total
        if since is not None:
            total = Segment(0, 0, {})
            for segment in self.segments:
                if segment.start >= since:
                    _join(total, segment)
        return {name: value / weight for name, (value, weight) in total.sums.items()}

    def tail_start(self, share: float) -> int:
        """Return where the last `share` of the events starts, rounded up to a segment's start.

        The last segment always belongs to it; 0 without events.
        """
        if not self.segments:
            return 0
        first, end = self.segments[0].start, self.segments[-1].stop
        ideal = end - math.floor(share * (end - first))
        starts = [segment.start for segment in self.segments]
        return next((start for start in starts if start >= ideal), starts[-1])

    def _halve(self) -> None:
        pairs = zip(self.segments[::2], self.segments[1::2], strict=True)
        self.segments = [_join(left, right) for left, right in pairs]
        self.batches_per_segment *= 2


def _segment_to_json(segment: Segment) -> dict[str, Any]:
    return {"start": segment.start, "stop": segment.stop, "sums": dict(segment.sums)}


def _join(left: Segment, right: Segment) -> Segment:
    """Take `right`, which follows `left`, into it."""
    left.stop = right.stop
    for name, (value, weight) in right.sums.items():
        old_value, old_weight = left.sums.get(name, (0.0, 0.0))
        left.sums[name] = (old_value + value, old_weight + weight)
    return left
