"""A fair readers-writer lock for the model."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class ReadWriteLock:
    """A readers-writer lock that serves threads in the order of their requests."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._num_readers = 0
        self._writer: int | None = None

    @contextmanager
    def read(self) -> Iterator[None]:
        """Hold the lock together with other readers."""
        with self._held(exclusive=False):
            yield

    @contextmanager
    def write(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._held(exclusive=True):
            yield

    @contextmanager
    def _held(self, *, exclusive: bool) -> Iterator[None]:
        if self._writer == threading.get_ident():
            yield
            return
        self._acquire(exclusive)
        try:
            yield
        finally:
            self._release(exclusive)

    def _acquire(self, exclusive: bool) -> None:
        request = object()
        with self._changed:
            self._queue.append(request)
            try:
                self._changed.wait_for(
                    lambda: self._queue[0] is request and self._is_free(exclusive)
                )
            finally:  # also of a wait that was interrupted
                self._queue.remove(request)
                self._changed.notify_all()
            if exclusive:
                self._writer = threading.get_ident()
            else:
                self._num_readers += 1

    def _is_free(self, exclusive: bool) -> bool:
        return self._writer is None and not (exclusive and self._num_readers)

    def _release(self, exclusive: bool) -> None:
        with self._changed:
            if exclusive:
                self._writer = None
            else:
                self._num_readers -= 1
            self._changed.notify_all()
