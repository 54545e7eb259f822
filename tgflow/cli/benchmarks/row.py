"""Rows of measured figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

Params = dict[str, str | int | float]

COSTS = frozenset({
    "us", "ms", "s", "us/step", "bytes/entry", "MB", "of the budget", "of the room", "of before",
    "% slower", "points", "micro-batches",
})  # fmt: skip
"""Units of which less is better."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its baseline and its targets."""

    name: str
    value: float
    """NaN if the figure was not measured; `params` give the reason."""
    unit: str
    params: Params = field(default_factory=dict)
    target: float | None = None
    """The target for `value`, in the same unit."""
    baseline: float | None = None
    """The figure of another method in the same run, in the same unit."""
    target_ratio: float | None = None
    """The target for `ratio`, if there is a baseline."""

    @property
    def ratio(self) -> float | None:
        """How many times better than the baseline, or than the target if there is no baseline."""
        other = self.baseline if self.baseline is not None else self.target
        if not other or math.isnan(self.value):
            return None
        if self.unit in COSTS:
            return other / self.value if self.value else math.inf
        return self.value / other

    @property
    def reached(self) -> bool | None:
        """Whether the targets are reached; None without a target."""
        goals = []
        if self.target is not None:
            less = self.unit in COSTS
            goals.append(self.value <= self.target if less else self.value >= self.target)
        if self.target_ratio is not None and self.baseline is not None:
            goals.append((self.ratio or 0.0) >= self.target_ratio)
        return None if math.isnan(self.value) or not goals else all(goals)

    def to_json(self) -> dict[str, object]:
        """Return a JSON-serializable dict; a figure that was not measured is null."""
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
