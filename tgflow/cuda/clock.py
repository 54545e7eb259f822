"""How long a device was busy with a kind of work, without waiting for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from tgflow.cuda.device import Device, TimedEvent
from tgflow.cuda.devices import device_of, has_device


class WorkClock(Protocol):
    """Adds up how long work took."""

    @property
    def seconds(self) -> float:
        """What is done so far took; never waits."""

    def measuring(self) -> AbstractContextManager[None]:
        """Enclose work to be added; from one thread, or on a GPU from any."""


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
    """The time that a stream of a GPU spends, by events in it; time that overlaps counts once.

    Args:
        gpu: The GPU, whose current stream is always the same one where work is enclosed.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._seconds = 0.0
        self._open: deque[_Span] = deque()
        """In the order in which they began."""
        self._last: TimedEvent | None = None
        """The latest end of what was counted."""

    @property
    def seconds(self) -> float:
        """What is done so far took; never waits."""
        while self._open and (end := self._open[0].end) is not None and end.query():
            self._count(self._open.popleft().begin, end)
        return self._seconds

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Enclose work to be added."""
        span = _Span(self._gpu.record_time())
        self._open.append(span)
        try:
            yield
        finally:
            span.end = self._gpu.record_time()

    def _count(self, begin: TimedEvent, end: TimedEvent) -> None:
        """Add a span that began after those before, but for what these have of it."""
        took = begin.elapsed_time(end)
        if self._last is not None:
            took = min(took, self._last.elapsed_time(end))
        if took > 0:
            self._seconds += took / 1e3
            self._last = end


@dataclass(slots=True, eq=False)
class _Span:
    begin: TimedEvent
    end: TimedEvent | None = None
    """None while it goes on."""


def clock_of(device: torch.device) -> WorkClock:
    """Return a clock of what is computed on a device."""
    return StreamClock(device_of(device)) if has_device(device) else HostClock()
