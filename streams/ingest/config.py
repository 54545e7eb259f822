"""Settings of event ordering and admission."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Annotated, Literal

from annotated_types import Ge, Le

from tgflow.base.setting import EXPERT, Duration, Setting, Size, Timeout, check_ranges
from tgflow.base.units import INT64_MAX, INT64_MIN, parse_bytes, parse_timeout, ticks_in

Late = Literal["dead_letter", "drop", "error"]

BEFORE_ALL = INT64_MIN
"""Watermark before all times; no event may have this time."""
AFTER_ALL = INT64_MAX
"""Watermark after all times; no event may have this time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderConfig:
    """Settings of event ordering and admission."""

    allowed_lateness: Duration | None = None
    """Stream time by which an event may come after a later one of its partition, such as 30s."""
    late: Late = "dead_letter"
    """Policy for events later than `allowed_lateness`; default error for files, else dead_letter;
    drop only counts them."""
    max_time_jump: Timeout | None = None
    """Maximum jump of stream time in a partition, such as 1d, or none; unset: Kafka, --follow and
    stdin refuse times over a day after their record was written (else the clock), others none."""
    idle_timeout: Annotated[Timeout | None, Setting(live=True)] = None
    """Time after which a partition that has been read to its end delays no other, or none; unset:
    5s for Kafka, without --until-end and with a log, which records it; else none."""
    order_timeout: Annotated[Timeout | None, Setting(live=True)] = None
    """Time without new rows after which events that wait for earlier ones, or for others of their
    tick, are released, or none; unset: 1s for Kafka and --follow, likewise; else none."""
    buffer_events: Annotated[int, Ge(1), EXPERT] = 1_000_000
    """Maximum events in the reorder buffer, over all partitions; more of the latest tick stay."""
    buffer_bytes: Annotated[Size, EXPERT] = "256MiB"
    """Maximum memory of the reorder buffer, likewise."""
    dedup_window: Annotated[int, Ge(0), Le(INT64_MAX), EXPERT] = 0
    """Rows of a partition among which repeated event ids are found; 100000 with event_id."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if parse_bytes(self.buffer_bytes) < 1:
            raise ValueError(f"buffer_bytes must be at least 1, got {self.buffer_bytes}")

    def limits(self, unit: str) -> tuple[int, int | None]:
        """Return `allowed_lateness` and `max_time_jump`, None for any, in ticks of 1 `unit`."""
        lateness, jump = (
            None if span in (None, "none") else min(floor(ticks_in(span, unit)), INT64_MAX)
            for span in (self.allowed_lateness, self.max_time_jump)
        )
        return lateness or 0, jump

    def timeouts(self) -> tuple[float, float]:
        """Return `idle_timeout` and `order_timeout` in seconds, infinite if unset."""
        idle, order = (parse_timeout(x or "none") for x in (self.idle_timeout, self.order_timeout))
        return idle, order

    @property
    def max_bytes(self) -> int:
        """`buffer_bytes` as a number."""
        return parse_bytes(self.buffer_bytes)
