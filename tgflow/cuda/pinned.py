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
    """Of the copies out of it."""


class PinnedPool:
    """Pieces of pinned memory, as many as are filled or being copied at a time.

    Never waits: where all pieces are in use another is allocated. Any number of threads may borrow.

    Args:
        gpu: Whose streams copy.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._copied: list[_Copied] = []

    @contextmanager
    def lend(self, num_bytes: int) -> Iterator[Tensor]:
        """Lend pinned memory, uint8 `[num_bytes]`, whose contents are undefined.

        Fill it, and queue what copies it on the current stream, before this ends.

        Raises:
            MemoryError: If the host has none left.
        """
        room = self._take(num_bytes)
        yield room[:num_bytes]  # after an error nobody knows what still reads it: let it go
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
