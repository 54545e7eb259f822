"""What two trainings or runs that must be equal are compared by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tgflow.train.observe import Callback, EpochRecord, StepRecord

TIMED = (
    "seconds", "per_second", "overhead", "freshness", "lag", "elapsed", "rss", "progress",
    "hit_rate", "crc32", "reuse.late",
)  # fmt: skip
"""Parts of the names of figures that the clock and the machine decide."""


def untimed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures that must be equal in two equal runs."""
    return {k: v for k, v in record.items() if not any(word in k for word in TIMED)}


class Losses(Callback):
    """The losses and the metrics of a training, step by step or epoch by epoch."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_epoch(self, record: EpochRecord) -> None:
        """Note an epoch."""
        self.seen.append((record.loss, record.val))

    def on_step(self, record: StepRecord) -> None:
        """Note a micro-batch."""
        self.seen.append((record.loss, record.metrics))
