"""What every benchmark returns: rows of one table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

Params = dict[str, str | int | float]

COSTS = frozenset(
    {
        "ns",
        "us",
        "ms",
        "s",
        "us/step",
        "of the budget",
        "of all's",
        "of theirs",
        "of sharded's",
        "of 2 ranks'",
        "ns/event",
        "bytes/entry",
        "bytes/event",
        "of the room",
        "of the longer",
        "of staged",
        "% slower",
        "collectives",
        "points",
    }
)
"""Units of which less is better."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, the one it is compared with, and the one it is to reach."""

    name: str
    value: float
    """NaN for a figure that was not taken; `params` say why."""
    unit: str
    params: Params = field(default_factory=dict)
    target: float | None = None
    """The figure to reach, in the same unit."""
    baseline: float | None = None
    """What another method reached in the same run, in the same unit."""
    target_ratio: float | None = None
    """The `ratio` to reach, where there is a baseline."""

    @property
    def ratio(self) -> float | None:
        """How many times better than the baseline, or without one than the target."""
        other = self.baseline if self.baseline is not None else self.target
        if not other or math.isnan(self.value):
            return None
        if self.unit in COSTS:
            return other / self.value if self.value else math.inf
        return self.value / other

    @property
    def reached(self) -> bool | None:
        """Whether target and ratio are reached; None where there is nothing to reach."""
        goals = []
        if self.target is not None:
            less = self.unit in COSTS
            goals.append(self.value <= self.target if less else self.value >= self.target)
        if self.target_ratio is not None and self.baseline is not None:
            goals.append((self.ratio or 0.0) >= self.target_ratio)
        return None if math.isnan(self.value) or not goals else all(goals)

    def to_json(self) -> dict[str, object]:
        """Return what JSON can say of the row: a figure that was not taken is null."""
        return {
            "name": self.name,
            "params": self.params,
            "value": None if math.isnan(self.value) else self.value,
            "unit": self.unit,
            "baseline": self.baseline,
            "ratio": self.ratio,
            "target": self.target,
            "target_ratio": self.target_ratio,
            "reached": self.reached,
        }


def skipped(name: str, unit: str, params: Params, reason: str) -> Row:
    """Return the row of a figure that was not taken, and why."""
    return Row(name, math.nan, unit, {**params, "skipped": reason})
