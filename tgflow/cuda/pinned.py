"""Pinned host memory for copies to a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.cuda.device import Device, StreamEvent, device_of, has_device

_LEAST_BYTES = 4096


class _Copied(NamedTuple):
    room: Tensor
    done: StreamEvent
    """Event after the copies from the buffer."""


class PinnedPool:
    """A pool of pinned buffers for copies to a GPU.

    Never waits: if all buffers are in use it allocates another. Thread-safe.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._copied: list[_Copied] = []

    @contextmanager
    def lend(self, num_bytes: int) -> Iterator[Tensor]:
        """Lend pinned memory, uint8 `[num_bytes]`, whose contents are undefined.

        Fill it, and queue its copy on the current stream, before leaving the context.
        """
        room = self._take(num_bytes)
        yield room[:num_bytes]  # after an error its readers are unknown: discard it
        done = self._gpu.record_event()
        with self._lock:
            self._copied.append(_Copied(room, done))

    def _take(self, num_bytes: int) -> Tensor:
        with self._lock:
            for i, (room, done) in enumerate(self._copied):
                if len(room) >= num_bytes and done.query():
                    del self._copied[i]
                    return room
        return self._gpu.allocate_host(1 << (max(num_bytes, _LEAST_BYTES) - 1).bit_length())


_pools: dict[Device, PinnedPool] = {}


def uploaded(columns: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return int64 columns of the host on a device: on a GPU one copy that is not waited for."""
    if not has_device(device):
        return [column.to(device) for column in columns]
    gpu = device_of(device)
    pool = _pools.setdefault(gpu, PinnedPool(gpu))
    with pool.lend(8 * sum(map(len, columns))) as room:
        torch.cat([*columns], out=room.view(torch.int64))
        there = gpu.copy_from_host(room).view(torch.int64)
    return [*torch.split(there, [*map(len, columns)])]
