"""Comparison of two trainings or runs that must be equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tgflow.train.observe import Callback, EpochRecord, StepRecord

TIMED = (
    "seconds", "per_second", "overhead", "freshness", "lag", "elapsed", "rss", "progress",
    "hit_rate", "crc32", "gpu_bytes", "gpu_peak_bytes", "preparation_share",
)  # fmt: skip
"""Name parts of metrics that depend on the clock or the machine."""


def untimed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that must be equal in two equal runs."""
    return {k: v for k, v in record.items() if not any(word in k for word in TIMED)}


def state_of(trainer: Any) -> dict[tuple[str, str], Tensor]:
    """Return copies of all tensors in a trainer's checkpoint, sealed ones too, on the CPU."""
    saved = trainer.checkpoint()
    sections = saved.sections | {name: make() for name, make in saved.sealed.items()}
    return {
        (part, name): x.cpu().clone()
        for part, found in sections.items()
        for name, x in found.items()
    }


def assert_same_state(left: Any, right: Any, *parts: str) -> None:
    """Assert that two trainers are bit-identical, in some or all sections."""
    found, expected = state_of(left), state_of(right)
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert torch.equal(found[name], x) or (parts and name[0] not in parts), name


class Losses(Callback):
    """The losses and the metrics of a training, step by step or epoch by epoch."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_epoch(self, record: EpochRecord) -> None:
        """Record an epoch."""
        self.seen.append((record.loss, record.val))

    def on_step(self, record: StepRecord) -> None:
        """Record a micro-batch."""
        self.seen.append((record.loss, record.metrics))
