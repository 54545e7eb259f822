"""Bounded prefetch in a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Ended(Exception):
    """Raised when the iterator is exhausted."""


class Prefetcher(Generic[T]):
    """Prefetches the items of an iterator in a thread."""

    def __init__(self, items: Iterator[T], depth: int) -> None:
        self._items = items
        self._waiting: queue.Queue[T | BaseException] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._end: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tgflow-ahead", daemon=True)
        self._thread.start()

    @property
    def is_empty(self) -> bool:
        """Whether no item waits to be taken."""
        return self._waiting.empty()

    def take(self, timeout: float) -> T | None:
        """Return the next item, waiting up to `timeout` seconds; None on timeout."""
        if self._end is not None:
            raise self._end
        try:
            item = self._waiting.get(timeout=timeout) if timeout > 0 else self._waiting.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, BaseException):
            self._end = item
            raise item
        return item

    def close(self) -> None:
        """Stop the thread; waits for the item in progress, a few seconds at most."""
        self._stopped.set()
        with suppress(queue.Empty):
            self._waiting.get_nowait()  # unblock a thread that waits for space
        self._thread.join(timeout=5)

    def _run(self) -> None:
        end: BaseException = Ended()
        try:
            for item in self._items:
                if not self._put(item):
                    return
        except BaseException as error:  # raised again by `take`
            end = error
        self._put(end)

    def _put(self, item: T | BaseException) -> bool:
        """Put an item; return False if the prefetcher was closed."""
        while not self._stopped.is_set():
            try:
                self._waiting.put(item, timeout=0.1)
            except queue.Full:
                continue
            return not self._stopped.is_set()
        return False
