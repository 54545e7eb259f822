"""Locks between a trainer and the other threads of its process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class ModelLock:
    """Readers-writer lock of a model: a trainer's step excludes queries, and they exclude it.

    First come, first served, so that neither many queries nor a fast trainer starve the other.
    Reentrant. A copy of the model has a lock of its own.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._queue = deque[object]()
        """Threads that wait, and first of all the exclusive holder."""
        self._holders = set[int]()
        self._num_shared = 0

    def __reduce__(self) -> tuple[type[ModelLock], tuple[()]]:
        return ModelLock, ()

    @contextmanager
    def held(self, *, shared: bool = False) -> Iterator[None]:
        """Context manager that holds the lock, alone or together with others that share it."""
        thread, me = threading.get_ident(), object()
        if thread in self._holders:
            yield
            return
        with self._changed:
            self._queue.append(me)
            try:
                while self._queue[0] is not me or (self._num_shared and not shared):
                    self._changed.wait()
            except BaseException:
                self._leave(me)
                raise
            if shared:
                self._num_shared += 1
                self._leave(me)
        self._holders.add(thread)
        try:
            yield
        finally:
            self._holders.discard(thread)
            with self._changed:
                if shared:
                    self._num_shared -= 1
                    self._changed.notify_all()
                else:
                    self._leave(me)

    def _leave(self, me: object) -> None:
        self._queue.remove(me)
        self._changed.notify_all()


class OneThread:
    """Admits one thread at a time, and refuses others: `what` names the work in the error."""

    def __init__(self, what: str) -> None:
        self._what, self._changing = what, threading.Lock()
        self._thread: threading.Thread | None = None
        self._num_entered = 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Context manager of the work."""
        me = threading.current_thread()
        with self._changing:
            other = self._thread
            if self._num_entered and other is not None and other is not me and other.is_alive():
                raise RuntimeError(
                    f"{self._what}, and thread {other.name!r} is doing so: wait until it has "
                    f"ended, or use a trainer of its own for thread {me.name!r}"
                )
            self._thread = me
            self._num_entered += 1
        try:
            yield
        finally:
            with self._changing:
                self._num_entered -= 1
