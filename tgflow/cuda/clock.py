"""Measures the busy time of a device without synchronizing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tgflow.cuda.device import Device, StreamEvent, device_of, has_device


class WorkClock:
    """Adds up the time of work on the host, for a CPU."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of finished work; never waits."""
        return self._seconds

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Enclose work to measure; from one thread, or on a GPU from any."""
        begin = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - begin


class StreamClock(WorkClock):
    """Adds up the time of a GPU's stream by CUDA events; overlapping time counts once."""

    def __init__(self, gpu: Device) -> None:
        super().__init__()
        self._gpu = gpu
        self._open: deque[_Span] = deque()
        """In the order of their starts."""
        self._last: StreamEvent | None = None
        """Latest end of a counted span."""

    @property
    def seconds(self) -> float:
        """Seconds of finished work; never waits."""
        while self._open and (end := self._open[0].end) is not None and end.query():
            self._count(self._open.popleft().begin, end)
        return self._seconds

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Enclose work to measure."""
        span = _Span(self._gpu.record_time())
        self._open.append(span)
        try:
            yield
        finally:
            span.end = self._gpu.record_time()

    def _count(self, begin: StreamEvent, end: StreamEvent) -> None:
        """Add a span that began after those before, without their overlap."""
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
    """None while it is open."""


def clock_of(device: torch.device) -> WorkClock:
    """Return a clock for work on a device."""
    return StreamClock(device_of(device)) if has_device(device) else WorkClock()
