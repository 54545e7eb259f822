"""Busy time of a CUDA stream from its events, without waiting or double counting."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from helpers.emulator.device import EmulatedDevice, EmulatedEvent
from tgflow.cuda.clock import StreamClock

STREAM = 7


@dataclass(eq=False)
class TimedDevice(EmulatedDevice):
    """A device whose events complete at times in seconds set by the test."""

    now: float = 0.0
    current: int = STREAM  # type: ignore[assignment]
    events: list[EmulatedEvent] = field(default_factory=list)

    def record_time(self) -> EmulatedEvent:
        self.events.append(EmulatedEvent(self, self.current, self.now))
        return self.events[-1]


def test_clock_counts_finished_work_without_waiting_for_the_rest() -> None:
    gpu = TimedDevice()
    clock = StreamClock(gpu)
    with clock.measuring():
        gpu.now = 3.0
    assert clock.seconds == pytest.approx(3)
    gpu.busy.add(STREAM)
    gpu.now = 10.0
    with clock.measuring():
        gpu.now = 12.5
    assert clock.seconds == pytest.approx(3)
    gpu.busy.clear()
    assert clock.seconds == pytest.approx(5.5)
    assert gpu.synchronized == 0
