"""The ids of events that were handed on, until nobody asks for them any more."""

from __future__ import annotations

import threading
from collections import deque

import pyarrow as pa


class HandedIds:
    """Ids of consecutive events by their position: one thread adds them, another one takes them.

    Args:
        start: Position of the first event to come.
    """

    def __init__(self, start: int) -> None:
        self._lock = threading.Lock()
        self._parts: deque[tuple[int, pa.Array]] = deque()
        self._stop = start

    def add(self, ids: pa.Array) -> None:
        """Add the ids of the next events."""
        with self._lock:
            self._parts.append((self._stop, ids))
            self._stop += len(ids)

    def take(self, start: int, stop: int) -> pa.Array:
        """Return the ids at `[start, stop)`, which were added, and forget those before `start`."""
        with self._lock:
            while self._parts and self._parts[0][0] + len(self._parts[0][1]) <= start:
                self._parts.popleft()
            found = [
                ids.slice(max(start - first, 0), stop - max(start, first))
                for first, ids in self._parts
                if first < stop
            ]
        return pa.concat_arrays(found) if found else pa.nulls(0, pa.string())
