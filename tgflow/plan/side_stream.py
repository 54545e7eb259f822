"""Batches made on a stream of their own, beside the one that learns from the batches before."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple, TypeVar

from torch import Tensor

from tgflow.batch import Batch
from tgflow.cuda.device import Device, StreamEvent
from tgflow.cuda.pinned import PinnedPool

T = TypeVar("T")

_ALIGNMENT = 256
"""Of columns, in bytes: that of whatever torch allocates itself."""


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
        self._pinned = PinnedPool(gpu)

    def make(self, prepare: Callable[[T], Batch], item: T) -> ReadyBatch:
        """Return `prepare(item)`, whose work on the GPU is queued on this stream. For any thread.

        What is in host memory goes over in one copy from pinned memory.
        """
        with self._gpu.on(self._stream):
            batch = prepare(item)
            if batch.eid.device != self._gpu.device:
                batch = self.copied(batch)
            return ReadyBatch(batch, self._gpu.record_event())

    def take(self, ready: ReadyBatch) -> Batch:
        """Return a batch for the current stream, whose later work waits until it is there."""
        self._gpu.wait_event(ready.done)
        for column in ready.batch.tensors():
            self._gpu.keep_for_current_stream(column)
        return ready.batch

    def copied(self, batch: Batch) -> Batch:
        """Return a copy of a batch of the host on the GPU: one piece, by one copy."""
        columns = batch.tensors()
        sizes = [-(-column.nbytes // _ALIGNMENT) * _ALIGNMENT for column in columns]
        begins = [0, *accumulate(sizes)]
        with self._pinned.lend(begins[-1]) as room:
            for column, begin in zip(columns, begins, strict=False):
                # numpy copies on this thread alone, where torch would start threads beside it
                _part(room, column, begin).numpy()[...] = column.numpy()
            there = self._gpu.copy_from_host(room)
        places = {id(column): begin for column, begin in zip(columns, begins, strict=False)}
        return batch.map(lambda column: _part(there, column, places[id(column)]))


def _part(piece: Tensor, like: Tensor, begin: int) -> Tensor:
    """Return the part of `piece`, uint8, that holds a tensor like `like`."""
    part = piece[begin : begin + like.numel() * like.element_size()]
    return part.view(like.dtype).view(like.shape)
