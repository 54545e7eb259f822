"""Measures the busy time of a device without synchronizing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

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

    def measuring(self) -> AbstractContextManager[None]:
        """Enclose work to measure, on one thread and stream; spans do not overlap."""
        return self._measuring()

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - begin


class StreamClock(WorkClock):
    """Adds up the time of a GPU's stream by CUDA events.

    After the first spans it measures one of every few, which stands for those since the last.
    """

    def __init__(self, gpu: Device) -> None:
        super().__init__()
        self._gpu = gpu
        self._num = self._num_measured = 0
        """Spans so far, and up to the latest one that is measured."""
        self._open: deque[tuple[StreamEvent, StreamEvent, int]] = deque()
        """Begin and end of each measured span that is not counted yet, in their order, and for how
        many spans it stands."""

    @property
    def seconds(self) -> float:
        """Seconds of finished work; never waits."""
        while self._open and self._open[0][1].query():
            begin, end, num = self._open.popleft()
            self._seconds += num * begin.elapsed_time(end) / 1e3
        return self._seconds

    def measuring(self) -> AbstractContextManager[None]:
        """Enclose work to measure."""
        self._num += 1
        is_measured = self._num <= FIRST_SPANS or self._num - self._num_measured >= EVERY_SPANS
        return self._measuring() if is_measured else _UNMEASURED

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        num, self._num_measured = self._num - self._num_measured, self._num
        begin = self._gpu.record_time()
        try:
            yield
        finally:
            self._open.append((begin, self._gpu.record_time(), num))


FIRST_SPANS = 16
"""Spans that are all measured."""
EVERY_SPANS = 17
"""Later ones between those measured: prime, as kinds of work alternate."""
_UNMEASURED = nullcontext()


def clock_of(device: torch.device) -> WorkClock:
    """Return a clock for work on a device."""
    return StreamClock(device_of(device)) if has_device(device) else WorkClock()
