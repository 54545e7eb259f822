"""Limits on what a row may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from tgflow.setting import Setting, Size, check_ranges
from tgflow.units import INT64_MAX, INT64_MIN, parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What a row must be to become an event; one that is not becomes a dead letter.

    Raises:
        ValueError: If a limit is out of its range.
    """

    max_bad_ratio: Annotated[float, Ge(0), Le(1), Setting(resume="any_time")] = 0.05
    """Share of bad rows among the last 10,000 of a partition that stops the run."""
    max_node_id: Annotated[int, Ge(0), Le(INT64_MAX)] = INT64_MAX
    """Largest integer node id; unset: any int64. Ids are mapped to dense ones, so that a large one
    costs no memory."""
    max_abs: Annotated[float, Ge(0)] | None = None
    """Largest absolute value of a feature; unset: any that float32 holds."""
    min_label: Annotated[int, Setting(expert=True)] = INT64_MIN
    """Smallest label."""
    max_label: Annotated[int, Setting(expert=True)] = INT64_MAX
    """Largest label."""
    max_record_bytes: Size = "1MiB"
    """Longest record of a topic, or line of a text file with its line end."""
    unknown_keys: Annotated[Literal["ignore", "reject"], Setting(expert=True)] = "ignore"
    """JSON: whether keys that nobody named are ignored, or make a row bad."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.max_bytes < 1:
            raise ValueError(f"max_record_bytes must be at least 1, got {self.max_record_bytes}")

    @property
    def max_bytes(self) -> int:
        """`max_record_bytes` as a number."""
        return parse_bytes(self.max_record_bytes)
