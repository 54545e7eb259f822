"""Counters and metrics of a continual run, which a checkpoint carries on."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from tgflow.base.choices import MRR_OF_SOME
from tgflow.base.metrics import Figures


@dataclass(slots=True)
class RunningMean:
    """Exponentially weighted means with a half-life of `half_life` values."""

    half_life: float
    sums: Figures = field(default_factory=dict)

    def add(self, figures: Figures) -> dict[str, float]:
        """Add one value for each name, no NaN, and return the means."""
        decay, sums = 0.5 ** (1 / self.half_life), self.sums
        for name in figures:
            value, _ = figures[name]
            if name in sums:
                total, weight = sums[name]
                sums[name] = total * decay + value, weight * decay + 1
            else:
                sums[name] = value, 1.0
        return self.means()

    def means(self) -> dict[str, float]:
        means, sums = dict[str, float](), self.sums
        for name in sums:
            total, weight = sums[name]
            means[name] = total / weight
        return means


@dataclass(slots=True)
class Segment:
    """Sums over consecutive batches."""

    start: int
    stop: int
    sums: Figures

    def join(self, other: Segment) -> None:
        self.stop, sums, more = other.stop, self.sums, other.sums
        for name in more:
            value, weight = more[name]
            if name in sums:
                old_value, old_weight = sums[name]
                sums[name] = old_value + value, old_weight + weight
            else:
                sums[name] = value, weight


_SQUARES = "mrr_squares"
"""Sum of squared reciprocal ranks, and number of all events, beside the sum in "mrr"."""


@dataclass(slots=True)
class Timeline:
    """Metrics along a stream, from which the mean of any late part follows."""

    capacity: int = 4096  # even
    batches_per_segment: int = 1
    segments: list[Segment] = field(default_factory=list)
    last_batches: int = 0
    total: Segment = field(default_factory=lambda: Segment(0, 0, {}))

    def add(self, start: int, stop: int, figures: Figures, squares: float | None = None) -> None:
        """Add a batch of events `[start, stop)`, which follow those before; no NaN.

        Args:
            start: Its first event.
            stop: After its last event.
            figures: Its figures.
            squares: Sum of the squared reciprocal ranks, if events were ranked.
        """
        sums: Figures = {}
        for name in figures:
            value, weight = figures[name]
            sums[name] = value * weight, weight
        if squares is not None:
            sums[_SQUARES] = squares, float(stop - start)
        batch = Segment(start, stop, sums)
        self.total.join(batch)
        if self.segments and self.last_batches < self.batches_per_segment:
            self.segments[-1].join(batch)
            self.last_batches += 1
            return
        if len(self.segments) == self.capacity:
            for left, right in zip(self.segments[::2], self.segments[1::2], strict=True):
                left.join(right)
            del self.segments[1::2]
            self.batches_per_segment *= 2
        self.segments += (batch,)
        self.last_batches = 1

    def mean(self, since: int | None = None) -> dict[str, float]:
        """Return the mean of each metric over the segments that start at event `since` or later.

        If a sample of the events was ranked, also `mrr_events`, how many, and `mrr_error`, the
        standard error of `mrr` as an estimate of that of all events. Of `MRR_OF_SOME`, how many.
        """
        total = self.total
        if since is not None:
            total = Segment(0, 0, {})
            for segment in self.segments:
                if segment.start >= since:
                    total.join(segment)
        sums, out = total.sums, dict[str, float]()
        for name in sums:
            value, weight = sums[name]
            if name != _SQUARES:
                out[name] = value / weight
        for name in MRR_OF_SOME:
            if name in sums:
                out[f"{name}_events"] = sums[name][1]
        if "mrr" not in sums or _SQUARES not in sums:
            return out
        num_ranked, (squares, num) = sums["mrr"][1], sums[_SQUARES]
        if num > num_ranked:
            variance = squares / num_ranked - out["mrr"] ** 2
            out["mrr_events"] = num_ranked
            out["mrr_error"] = (
                math.sqrt(variance / num_ranked * (1 - num_ranked / num)) if variance > 0 else 0.0
            )
        return out

    def tail_start(self, share: float) -> int:
        """Return the start of the last `share` of the events, rounded up to a segment's start."""
        if not self.segments:
            return 0
        first, end = self.segments[0].start, self.segments[-1].stop
        ideal = end - math.floor(share * (end - first))
        starts = [segment.start for segment in self.segments]
        return next((start for start in starts if start >= ideal), starts[-1])


@dataclass(slots=True)
class Progress:
    """Progress of a run; numbers only, so that it passes through JSON unchanged."""

    running: RunningMean
    timeline: Timeline = field(default_factory=Timeline)
    num_events: int = 0
    num_steps: int = 0
    num_fallbacks: int = 0
    wall_seconds: float = 0.0
    compute_seconds: float = 0.0
    step_seconds: float = 0.0
    best_replay_ap: float | None = None
    """Highest running AP on replayed events."""
    clock: float = 0.0
    """End of the latest step, in this process only."""
    compute_clock: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return a copy as plain values, from which `read_as` restores it."""
        plain: dict[str, Any] = TypeAdapter(Progress).dump_python(self)
        return plain

    def resume(self, compute_seconds: float) -> None:
        self.clock = time.perf_counter()
        self.compute_clock = compute_seconds

    def add(
        self,
        start: int,
        stop: int,
        figures: Figures,
        *,
        squares: float | None,
        num_fallbacks: int,
        ended: float,
        compute_seconds: float,
    ) -> dict[str, float]:
        """Add the step over events `[start, stop)`, done at `ended` by `perf_counter`.

        Returns the running means.
        """
        means = self.running.add(figures)
        self.timeline.add(start, stop, figures, squares)
        self.num_events += stop - start
        self.num_steps += 1
        self.num_fallbacks += num_fallbacks
        if "replay_ap" in figures:
            latest = means["replay_ap"]
            if self.best_replay_ap is None or latest > self.best_replay_ap:
                self.best_replay_ap = latest
        self.step_seconds = ended - self.clock
        self.wall_seconds += self.step_seconds
        self.compute_seconds += compute_seconds - self.compute_clock
        self.clock, self.compute_clock = ended, compute_seconds
        return means

    def forgetting(self) -> float | None:
        """Return how much the running AP on replayed events is below its highest, at least 0."""
        if self.best_replay_ap is None:
            return None
        total, weight = self.running.sums["replay_ap"]
        return self.best_replay_ap - total / weight

    def events_per_second(self) -> float:
        return self.num_events / self.wall_seconds if self.wall_seconds else 0.0

    def overhead_share(self) -> float:
        """Return the share of wall time outside forward, backward and optimizer."""
        return 1 - self.compute_seconds / self.wall_seconds if self.wall_seconds else 0.0

    def summary(self) -> dict[str, Any]:
        """Return the metrics of the whole run for a result; unknown ones are omitted."""
        out: dict[str, Any] = {
            "num_steps": self.num_steps,
            "num_fallbacks": self.num_fallbacks,
            "epoch_seconds": self.wall_seconds,
            "events_per_second": self.events_per_second(),
            "overhead_share": self.overhead_share(),
            "forgetting": self.forgetting(),
        }
        out |= {f"running.{name}": value for name, value in self.running.means().items()}
        return {name: value for name, value in out.items() if value is not None}
