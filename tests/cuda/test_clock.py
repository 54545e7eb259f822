"""How long a stream is busy, from events in it: nothing waits, and no time counts twice."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from helpers.devices import needs_cuda
from helpers.emulator.device import EmulatedDevice, EmulatedEvent
from tgflow.cuda.clock import StreamClock
from tgflow.cuda.device import Device

STREAM = 7


@dataclass(eq=False)
class TimedDevice(EmulatedDevice):
    """Whose stream comes to an event when the test says: in seconds."""

    now: float = 0.0
    current: int = STREAM  # type: ignore[assignment]
    events: list[EmulatedEvent] = field(default_factory=list)

    def record_time(self) -> EmulatedEvent:
        self.events.append(EmulatedEvent(self, self.current, self.now))
        return self.events[-1]


def test_what_is_done_counts_and_nothing_waits_for_the_rest() -> None:
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


def test_time_that_threads_share_counts_once() -> None:
    """One begins at 0 and another at 1; they end at 4 and 6, and a third lies within both."""
    gpu = TimedDevice()
    clock = StreamClock(gpu)
    first, second, third = (clock.measuring() for _ in range(3))
    for now, act in (
        (0.0, first.__enter__),
        (1.0, second.__enter__),
        (2.0, third.__enter__),
        (3.0, lambda: third.__exit__(None, None, None)),
        (4.0, lambda: first.__exit__(None, None, None)),
        (6.0, lambda: second.__exit__(None, None, None)),
    ):
        gpu.now = now
        act()
        assert clock.seconds == pytest.approx(now if now > 3 else 0), "the first is not done"
    gpu.now = 8.0
    with clock.measuring():
        gpu.now = 9.0
    assert clock.seconds == pytest.approx(7)


@pytest.mark.parametrize("gpu", [pytest.param("cuda", marks=needs_cuda)])
def test_a_gpu_says_how_long_its_stream_was_busy(gpu: str) -> None:
    device = Device(torch.device(gpu))
    clock = StreamClock(device)
    x = torch.rand(4096, 4096, device=gpu)
    for _ in range(3):
        with clock.measuring():
            x @ x
    device.synchronize()
    assert 0 < clock.seconds < 10
