"""Batches made on a stream of their own, beside the one that learns from the batches before."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tgflow.batch import Batch
from tgflow.cuda.device import Device, StreamEvent

T = TypeVar("T")


class ReadyBatch(NamedTuple):
    """A batch on a GPU, or on its way there."""

    batch: Batch
    done: StreamEvent


class SideStream:
    """Makes batches on a stream of its own, and hands them over to another.

    Nothing waits on the host: the stream that takes a batch does, on the device, for what made it.

    Args:
        gpu: Where batches are to be.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._stream = gpu.open_stream()

    def make(self, prepare: Callable[[T], Batch], item: T) -> ReadyBatch:
        """Return `prepare(item)`, whose work is queued on this stream. For any thread."""
        with self._gpu.on(self._stream):
            return ReadyBatch(prepare(item), self._gpu.record_event())

    def take(self, ready: ReadyBatch) -> Batch:
        """Return a batch for the current stream, whose later work waits until it is there."""
        self._gpu.wait_event(ready.done)
        for column in ready.batch.tensors():
            self._gpu.keep_for_current_stream(column)
        return ready.batch

    def join(self) -> None:
        """Have the current stream wait for all that was queued on this one."""
        with self._gpu.on(self._stream):
            done = self._gpu.record_event()
        self._gpu.wait_event(done)
