"""Pinned host memory for copies to a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

from tgflow.cuda.device import Device, StreamEvent

_LEAST_BYTES = 4096


class _Copied(NamedTuple):
    room: Tensor
    done: StreamEvent
    """Event after the copies from the buffer."""


class PinnedPool:
    """A pool of pinned buffers for copies to a GPU.

    Never waits: if all buffers are in use it allocates another. Thread-safe.

    Args:
        gpu: Device whose streams copy.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._copied: list[_Copied] = []

    @contextmanager
    def lend(self, num_bytes: int) -> Iterator[Tensor]:
        """Lend pinned memory, uint8 `[num_bytes]`, whose contents are undefined.

        Fill it, and queue its copy on the current stream, before leaving the context.

        Raises:
            MemoryError: If the host has no memory left.
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
