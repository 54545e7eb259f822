"""How events are put in order, and which are not taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tgflow.units import INT64_MAX, INT64_MIN

Late = Literal["dead_letter", "drop", "error"]

BEFORE_ALL = INT64_MIN
"""A watermark that nothing is before; no event may have this time."""
AFTER_ALL = INT64_MAX
"""A watermark that every event is before; no event may have this time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderConfig:
    """Settings of the order; times are in ticks.

    Args:
        allowed_lateness: How far an event may be behind the latest one of its partition.
        late: What becomes of events further behind: they are dead letters, only counted, or an
            error.
        max_time_jump: An event further than this ahead of all others of its partition is
            malformed; None takes any. The first of a partition cannot be judged.
        time_min: An event before it is malformed.
        time_max: An event after it is malformed.
        idle_timeout: Seconds after which a silent partition no longer holds the others back.
        buffer_events: Events to hold back, over all partitions.
        buffer_bytes: Bytes to hold back, over all partitions.
        dedup_window: How many rows back a partition's event ids are remembered; 0 keeps none.

    Raises:
        ValueError: If a setting is out of its range.
    """

    allowed_lateness: int = 0
    late: Late = "dead_letter"
    max_time_jump: int | None = None
    time_min: int | None = None
    time_max: int | None = None
    idle_timeout: float | None = None
    buffer_events: int = 1_000_000
    buffer_bytes: int = 256 << 20
    dedup_window: int = 0

    def __post_init__(self) -> None:
        for name in ("allowed_lateness", "max_time_jump", "dedup_window"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= INT64_MAX:
                raise ValueError(f"{name} must be from 0 to {INT64_MAX}, got {value}")
        for name in ("buffer_events", "buffer_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.idle_timeout is not None and not self.idle_timeout > 0:
            raise ValueError(f"idle_timeout must be above 0 seconds, got {self.idle_timeout}")
        if self.late not in ("dead_letter", "drop", "error"):
            raise ValueError(f"late must be dead_letter, drop or error, got {self.late!r}")
        if self.first_t > self.last_t:
            raise ValueError(f"time_min {self.time_min} is after time_max {self.time_max}")

    @property
    def first_t(self) -> int:
        """The earliest time an event may have."""
        return max(BEFORE_ALL + 1, BEFORE_ALL if self.time_min is None else self.time_min)

    @property
    def last_t(self) -> int:
        """The latest time an event may have."""
        return min(AFTER_ALL - 1, AFTER_ALL if self.time_max is None else self.time_max)
