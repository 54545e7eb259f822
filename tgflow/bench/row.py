"""What every benchmark returns: rows of one table."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, and the one it is held against."""

    name: str
    value: float
    unit: str
    params: dict[str, str | int | float] = field(default_factory=dict)
    baseline: float | None = None
    """The figure to reach, in the same unit."""

    @property
    def ratio(self) -> float | None:
        """Value over baseline: at least 1 where the figure is reached and more is better."""
        return None if not self.baseline else self.value / self.baseline
