"""Pinned host memory: a pool for copies to a GPU, and spare pieces allocated ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
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


class SparePinned:
    """Pieces of one size, the next allocated ahead by a thread: it takes tens of milliseconds.

    Args:
        gpu: Which reads them in place.
        num_bytes: Of each.
    """

    def __init__(self, gpu: Device, num_bytes: int) -> None:
        self._gpu, self._num_bytes = gpu, num_bytes
        self._next: Future[Tensor] | None = None

    def take(self) -> Tensor:
        """Return a piece: the one that is ready, or as soon as it is.

        Raises:
            MemoryError: If there is none left.
        """
        got, self._next = self._next, None
        if got is None or got.exception() is not None:
            piece = self._gpu.allocate_host(self._num_bytes)
        else:
            piece = got.result()
        self._next = Future()
        threading.Thread(target=self._get, args=(self._next,), name="tgflow-spare").start()
        return piece

    def _get(self, got: Future[Tensor]) -> None:
        try:
            got.set_result(self._gpu.allocate_host(self._num_bytes))
        except Exception as error:  # the next `take` tries again and raises
            got.set_exception(error)
