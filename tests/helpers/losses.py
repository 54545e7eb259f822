"""What two trainings that must be equal are compared by."""

from __future__ import annotations

from typing import Any

from tgflow.train.observe import Callback, EpochRecord, StepRecord


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
