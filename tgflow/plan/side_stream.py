"""The stream that batches are made on, beside the one that trains."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.cuda.device import Device, StreamEvent
from tgflow.plan.padding import BatchShape, cut

T = TypeVar("T")


class ReadyBatch(NamedTuple):
    """A batch on a GPU, or on its way there."""

    batch: Batch
    done: StreamEvent
    num_used: Tensor | None
    """Those of the batch in pinned memory, once `done`; None if it has none."""


class SideStream:
    """Makes batches on a stream of its own, and hands them over to another.

    What a GPU found comes to the host as numbers of rows, by which a batch is cut to a size, see
    `tgflow.plan.padding`. They are there when the batch is, so the host waits for nothing as long
    as batches are prepared ahead of whoever takes them; else until this one is prepared. All other
    waiting is done by the stream that takes a batch, on the device.

    Args:
        gpu: Where batches are to be.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._stream = gpu.open_stream()
        self._rooms: deque[Tensor] = deque()
        """Pinned memory for `num_used` of batches, which is free."""

    def make(self, prepare: Callable[[T], Batch], item: T) -> ReadyBatch:
        """Return `prepare(item)`, whose work is queued on this stream. For any thread."""
        with self._gpu.on(self._stream):
            batch = prepare(item)
            num_used = None if batch.num_used is None else self._on_host(batch.num_used)
            return ReadyBatch(batch, self._gpu.record_event(), num_used)

    def take(self, ready: ReadyBatch) -> Batch:
        """Return a batch for the current stream, whose later work waits until it is there."""
        self._gpu.wait_event(ready.done)
        batch = self._cut(ready)
        for column in batch.tensors():
            self._gpu.keep_for_current_stream(column)
        return batch

    def join(self) -> None:
        """Have the current stream wait for all that was queued on this one."""
        with self._gpu.on(self._stream):
            done = self._gpu.record_event()
        self._gpu.wait_event(done)

    def _on_host(self, num_used: Tensor) -> Tensor:
        """Return what will hold `num_used` when the current stream's work so far is done."""
        try:
            room = self._rooms.pop()
        except IndexError:
            room = self._gpu.allocate_host(num_used.nbytes).view(torch.int64)
        return room.copy_(num_used, non_blocking=True)

    def _cut(self, ready: ReadyBatch) -> Batch:
        if ready.num_used is None:
            return ready.batch
        if not ready.done.query():
            ready.done.synchronize()
        shape = BatchShape.of_used(ready.num_used.tolist())
        self._rooms.append(ready.num_used)
        return cut(ready.batch, shape.rounded())
