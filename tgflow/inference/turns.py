"""Who may use a model now: any number of askers together, or one alone, in the order they came."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A lock that several may share or one may have alone, first come, first served.

    So neither a trainer that takes turn after turn nor many askers keep the others waiting for
    ever. Whoever has it alone may take it again within.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._num_sharing = 0
        self._owner: int | None = None

    @contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        """Enclose what is done with the others who share, or alone."""
        if self._owner == threading.get_ident():
            yield
            return
        self._enter(alone)
        try:
            yield
        finally:
            self._leave(alone)

    def _enter(self, alone: bool) -> None:
        me = object()
        with self._changed:
            self._queue.append(me)
            try:
                self._changed.wait_for(lambda: self._queue[0] is me and self._is_free(alone))
            finally:  # also of a wait that was interrupted
                self._queue.remove(me)
                self._changed.notify_all()
            if alone:
                self._owner = threading.get_ident()
            else:
                self._num_sharing += 1

    def _is_free(self, alone: bool) -> bool:
        return self._owner is None and not (alone and self._num_sharing)

    def _leave(self, alone: bool) -> None:
        with self._changed:
            if alone:
                self._owner = None
            else:
                self._num_sharing -= 1
            self._changed.notify_all()
