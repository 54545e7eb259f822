"""How long a device was busy with forward, backward and optimizer, without waiting for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class HostClock:
    """The time that the host spends, which is that of a CPU."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Enclose what is to be added."""
        begin = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - begin


class StreamClock:
    """The time that the current stream of a GPU spends, by events in it.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._open: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @property
    def seconds(self) -> float:
        """What is done so far took; never waits."""
        while self._open and self._open[0][1].query():  # type: ignore[no-untyped-call]
            begin, end = self._open.popleft()
            self._seconds += begin.elapsed_time(end) / 1e3
        return self._seconds

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Enclose work to be added."""
        begin, end = _timed_event(), _timed_event()
        begin.record(torch.cuda.current_stream(self._device))
        yield
        end.record(torch.cuda.current_stream(self._device))
        self._open.append((begin, end))


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def clock_of(device: torch.device) -> HostClock | StreamClock:
    """Return the clock of what is computed on a device."""
    return StreamClock(device) if device.type == "cuda" else HostClock()
