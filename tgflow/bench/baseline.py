"""What the graph may be measured beside: a checkout brings a static CSR, a wheel brings nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from tgflow.bench.options import Options
from tgflow.events import EventBatch
from tgflow.graph import EventLog
from tgflow.sampling import Neighbors


class Baseline(Protocol):
    """Another store of events that gives the graph's answers, on the CPU."""

    def build(self, log: EventLog) -> None:
        """Replace the contents by the log's events."""

    def insert(self, events: EventBatch) -> None:
        """Add events that follow."""

    def recent(self, nodes: Tensor, t: Tensor, k: int) -> Neighbors:
        """Answer as `tgflow.sampling.recent_neighbors` does."""

    def uniform(self, nodes: Tensor, t: Tensor, k: int, *, key: int) -> Neighbors:
        """Answer as `tgflow.sampling.uniform_neighbors` does, draw for draw."""


NewBaseline = Callable[[], Baseline] | None
"""Makes an empty baseline; None where there is none."""


def open_baseline(new_baseline: NewBaseline, options: Options) -> Baseline | None:
    """Return an empty baseline, or say that its figures are left out and return None."""
    if new_baseline is None:
        options.say("there is no static CSR to compare with: `make bench` in a clone has one")
        return None
    return new_baseline()


def rate(count: int, seconds: float | None) -> float | None:
    """Return what that is a second; None where nothing was measured."""
    return None if seconds is None else count / seconds


def check_equal(what: str, ours: Neighbors, other: Neighbors) -> None:
    """Raise RuntimeError unless two answers are equal, bit for bit."""
    for column in ("nodes", "t", "eid", "count"):
        if not torch.equal(getattr(ours, column).cpu(), getattr(other, column)):
            raise RuntimeError(f"{what}: the answers differ in {column!r}")
