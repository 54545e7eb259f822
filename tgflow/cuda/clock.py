"""Measures the busy time of a device without synchronizing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

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
        """Enclose work to measure, on one thread and stream; spans do not overlap."""
        begin = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - begin


class StreamClock(WorkClock):
    """Adds up the time of a GPU's stream by CUDA events."""

    def __init__(self, gpu: Device) -> None:
        super().__init__()
        self._gpu = gpu
        self._open: deque[tuple[StreamEvent, StreamEvent]] = deque()
        """Begin and end of each span that is not counted yet, in their order."""

    @property
    def seconds(self) -> float:
        """Seconds of finished work; never waits."""
        while self._open and self._open[0][1].query():
            begin, end = self._open.popleft()
            self._seconds += begin.elapsed_time(end) / 1e3
        return self._seconds

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Enclose work to measure."""
        begin = self._gpu.record_time()
        try:
            yield
        finally:
            self._open.append((begin, self._gpu.record_time()))


def clock_of(device: torch.device) -> WorkClock:
    """Return a clock for work on a device."""
    return StreamClock(device_of(device)) if has_device(device) else WorkClock()
