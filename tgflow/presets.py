"""Settings of models by the kind of stream, which is measured on its beginning.

A preset is plain settings: what it sets is printed, and whatever is set otherwise stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from tgflow.events import EventBatch

Family = Literal["discrete", "sparse", "recommendation", "repeat"]
MEASURED = 100_000
"""Events of the beginning of a stream that decide."""
MOST_TIMES, LEAST_PER_TIME = 5_000, 20
LEAST_NEW = 0.25
MOST_REPEATED = 0.35
LONG_HISTORY = 100


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What decides of which kind a stream is."""

    num_events: int
    num_times: int
    repeat: float
    """Share of the events whose pair came before, either way."""
    new: float
    """Share of the events with a node that was not there before."""
    bipartite: bool
    """Whether no source is ever a destination."""
    median_history: int
    """Events that the source of the median event had before."""
    step_seconds: float
    """Mean time between two times of the stream."""

    @property
    def family(self) -> Family:
        """The kind of stream: the first whose rule fits."""
        per_time = self.num_events / max(self.num_times, 1)
        if self.num_times <= MOST_TIMES and per_time >= LEAST_PER_TIME:
            return "discrete"
        if self.new >= LEAST_NEW:
            return "sparse"
        if self.bipartite and self.repeat < MOST_REPEATED:
            return "recommendation"
        return "repeat"

    def line(self) -> str:
        """Return in one line what was measured."""
        return (
            f"{self.family}: {self.repeat:.0%} of pairs repeat, {self.new:.0%} of events have a "
            f"new node, {self.num_times:,} times in {self.num_events:,} events"
            f"{', bipartite' if self.bipartite else ''}"
        )


def measure(events: EventBatch, seconds_per_tick: float) -> StreamFacts:
    """Return the facts of the first events of a stream, in order.

    Args:
        events: At most the first 100,000 are looked at.
        seconds_per_tick: Length of a tick of their times.
    """
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
        step_seconds=span * seconds_per_tick / max(times - 1, 1),
    )


def settings_of(family: Family, facts: StreamFacts) -> dict[str, dict[str, Any]]:
    """Return what a kind of stream sets, by model; of the models that it names.

    Raises:
        ValueError: If there is no such kind.
    """
    if family not in get_args(Family):
        raise ValueError(f"preset must be one of {', '.join(get_args(Family))}, got {family!r}")
    if family == "discrete":
        decay = math.log(2) / (20 * facts.step_seconds) if facts.step_seconds else 0.0
        return {"tpnet": {"walk_decay": decay}}
    if family == "sparse":
        return {"graphmixer": {"neighbors": 20}, "tgat": {"neighbors": 20}}
    if family == "recommendation":
        craft = {"neighbors": 30, "loss": "bpr"}
        return {"craft": craft, "counts": {"base": True, "window": True}}
    long = facts.median_history >= LONG_HISTORY
    return {
        "counts": {} if facts.bipartite else {"both": True},
        "tpnet": {"neighbors": 20},
        "dygformer": {"length": 256, "patch": 8} if long else {"length": 32, "patch": 1},
    }


def _ranks(values: torch.Tensor) -> torch.Tensor:
    """Return how often each value came before, int64 of its shape."""
    order = torch.argsort(values, stable=True)
    ordered = values[order]
    place = torch.arange(len(values))
    starts = torch.ones(len(values), dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    first = torch.where(starts, place, 0).cummax(0).values if len(values) else place
    out = torch.empty_like(place)
    out[order] = place - first
    return out
