"""Locks between a trainer and the other threads of its process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ModelLock:
    """Readers-writer lock of a model: a trainer's step excludes queries, and they exclude it.

    `with lock:` holds it alone, `with lock.shared():` together with others that share it. First
    come, first served, so that neither many queries nor a fast trainer starve the other. Reentrant.
    A copy of the model has a lock of its own.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._queue = list[int]()
        """Threads that wait, and first of all the exclusive holder."""
        self._holders = dict[int, int]()
        """How often each thread has entered."""

    def __reduce__(self) -> tuple[type[ModelLock], tuple[()]]:
        return ModelLock, ()

    def _enter(self, *, shared: bool = False) -> None:
        me = threading.get_ident()
        if me in self._holders:
            self._holders[me] += 1
            return
        with self._changed:
            self._queue += [me]
            try:
                while self._queue[0] != me or (self._holders and not shared):
                    self._changed.wait()
            except BaseException:
                self._queue.remove(me)
                self._changed.notify_all()
                raise
            self._holders[me] = 1
            if shared:
                del self._queue[0]
                self._changed.notify_all()

    __enter__ = _enter

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        self._holders[me] -= 1
        if not self._holders[me]:
            with self._changed:
                del self._holders[me]
                if self._queue and self._queue[0] == me:
                    del self._queue[0]
                self._changed.notify_all()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Context manager that holds the lock together with others that share it."""
        self._enter(shared=True)
        try:
            yield
        finally:
            self.__exit__()


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
