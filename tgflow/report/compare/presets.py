"""Presets: model settings for a kind of stream, determined from its first events.

The settings of a preset are printed; explicit settings take precedence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tgflow.base.units import seconds_in
from tgflow.graph.events import EventBatch

Family = Literal["discrete", "sparse", "recommendation", "repeat"]
MEASURED = 100_000
"""Number of first events used for statistics."""
MOST_TIMES, LEAST_PER_TIME = 5_000, 20
LEAST_NEW = 0.25
MOST_REPEATED = 0.35
LONG_HISTORY = 100


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """Statistics of a stream that determine its kind."""

    num_events: int
    num_times: int
    repeat: float
    """Share of the events whose pair came before, either way."""
    new: float
    """Share of the events with a new node."""
    bipartite: bool
    """Whether no source is ever a destination."""
    median_history: int
    """Median over events of the number of earlier events of the source."""
    step_seconds: float
    """Mean difference between consecutive distinct times of the stream."""

    @property
    def family(self) -> Family:
        """The first kind whose rule the stream meets."""
        per_time = self.num_events / max(self.num_times, 1)
        if self.num_times <= MOST_TIMES and per_time >= LEAST_PER_TIME:
            return "discrete"
        if self.new >= LEAST_NEW:
            return "sparse"
        if self.bipartite and self.repeat < MOST_REPEATED:
            return "recommendation"
        return "repeat"

    def line(self) -> str:
        """Return the statistics as one line."""
        return (
            f"{self.family}: {self.repeat:.0%} of pairs repeat, {self.new:.0%} of events have a "
            f"new node, {self.num_times:,} times in {self.num_events:,} events"
            f"{', bipartite' if self.bipartite else ''}"
        )


def measure(events: EventBatch, seconds_per_tick: float) -> StreamFacts:
    """Return the statistics of the first 100,000 events of a stream."""
    events = events[:MEASURED]
    num = len(events)
    low, high = torch.minimum(events.src, events.dst), torch.maximum(events.src, events.dst)
    size = int(high.max()) + 1 if num else 1
    pairs = low * size + high
    times = len(torch.unique(events.t))
    span = int(events.t[-1] - events.t[0]) if num else 0
    ends = torch.stack([events.src, events.dst], dim=1).reshape(-1)
    history = _ranks(events.src)
    return StreamFacts(
        num_events=num,
        num_times=times,
        repeat=float((_ranks(pairs) > 0).double().mean()) if num else 0.0,
        new=float((_ranks(ends) == 0).reshape(-1, 2).any(1).double().mean()) if num else 0.0,
        bipartite=not bool(torch.isin(events.src, events.dst).any()),
        median_history=int(history.median()) if num else 0,
        step_seconds=seconds_in(span, seconds_per_tick) / max(times - 1, 1),
    )


def settings_of(family: Family, facts: StreamFacts) -> dict[str, dict[str, Any]]:
    """Return the settings of a preset, by model."""
    if family == "discrete":
        decay = math.log(2) / (20 * facts.step_seconds) if facts.step_seconds else 0.0
        return {"tpnet": {"walk_decay": decay}}
    if family == "sparse":
        return {"graphmixer": {"neighbors": 20}, "tgat": {"neighbors": 20}}
    if family == "recommendation":
        return {"craft": {"neighbors": 30, "loss": "bpr"}}
    long = facts.median_history >= LONG_HISTORY
    return {
        "tpnet": {"neighbors": 20},
        "dygformer": {"length": 256, "patch": 8} if long else {"length": 32, "patch": 1},
    }


def _ranks(values: torch.Tensor) -> torch.Tensor:
    """Return the number of earlier occurrences of each value, int64 of its shape."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    out = torch.empty_like(inverse)
    out[inverse.argsort(stable=True)] = torch.arange(len(values)) - starts
    return out
