"""How long a device was busy with a kind of work, without waiting for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tgflow.cuda.device import Device, StreamEvent, device_of, has_device


class WorkClock:
    """Adds up the time that the host spends on work, which is that of a CPU."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """What is done so far took; never waits."""
        return self._seconds

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Enclose work to be added; from one thread, or on a GPU from any."""
        begin = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - begin


class StreamClock(WorkClock):
    """The time that a stream of a GPU spends, by events in it; time that overlaps counts once."""

    def __init__(self, gpu: Device) -> None:
        super().__init__()
        self._gpu = gpu
        self._open: deque[_Span] = deque()
        """In the order in which they began."""
        self._last: StreamEvent | None = None
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

    def _count(self, begin: StreamEvent, end: StreamEvent) -> None:
        """Add a span that began after those before, but for what these have of it."""
        took = begin.elapsed_time(end)
        if self._last is not None:
            took = min(took, self._last.elapsed_time(end))
        if took > 0:
            self._seconds += took / 1e3
            self._last = end


@dataclass(slots=True, eq=False)
class _Span:
    begin: StreamEvent
    end: StreamEvent | None = None
    """None while it goes on."""


def clock_of(device: torch.device) -> WorkClock:
    """Return a clock of what is computed on a device."""
    return StreamClock(device_of(device)) if has_device(device) else WorkClock()
