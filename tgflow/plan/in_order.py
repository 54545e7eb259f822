"""An ordered parallel map over tasks, prepared ahead by threads."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Task = tuple[int, int] | tuple[int, int, object]
"""Which batch to prepare: (epoch, index); (epoch, index, number) for a slice of it; or with what
was decided of it before, see `tgflow.plan.reuse`."""


class BatchError(RuntimeError):
    """Preparing a batch failed; the cause is chained."""


def run_task(prepare: Callable[..., T], task: Task) -> T:
    """Return `prepare(*task)`; raises BatchError if that fails."""
    try:
        return prepare(*task)
    except Exception as error:
        raise batch_error(task, error) from error


def batch_error(task: Task, error: Exception) -> BatchError:
    """Return the error of a batch that could not be prepared."""
    where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
    return BatchError(f"preparing {task_name(task)} failed: {where}{error}")


def task_name(task: Task) -> str:
    """Return the batch or slice of a task in words."""
    epoch, index, *part = task
    slices = "".join(f"slice {each} of " for each in part if isinstance(each, int))
    return f"{slices}batch {index} of epoch {epoch}"


Item = TypeVar("Item")
T = TypeVar("T")

_STREAM_GRACE_SECONDS = 1.0


def ordered_map(
    make: Callable[[Item], T],
    items: Iterable[Item],
    *,
    num_threads: int = 1,
    lookahead: int = 1,
    may_wait: bool = False,
) -> Generator[T]:
    """Yield `make(item)` for each item, in their order."""
    if num_threads == 0:
        for item in items:
            yield make(item)
        return
    work = _Work(make, iter(items), lookahead, may_wait)
    try:
        work.start(num_threads)
        yield from work.results()
    finally:
        work.end()


def until_failure(items: Iterator[Item], failures: list[BaseException]) -> Generator[Item]:
    """Yield `items` up to the first failure, which is added to `failures` and not raised."""
    try:
        yield from items
    except GeneratorExit:
        raise
    except BaseException as error:
        failures.append(error)


class _Work(Generic[Item, T]):
    """Tickets between the threads that make things and the one that takes them, in order."""

    def __init__(
        self, make: Callable[[Item], T], items: Iterator[Item], lookahead: int, may_wait: bool
    ) -> None:
        self._threads: list[threading.Thread] = []
        self._may_wait = may_wait
        self._make = make
        self._items = items
        self._lookahead = lookahead
        self._changed = threading.Condition()
        self._done: dict[int, Callable[[], T]] = {}
        """By ticket, what returns what was made, or raises what failed."""
        self._num_pulled = 0
        self._num_taken = 0
        self._puller: threading.Thread | None = None
        self._ended = False

    def start(self, num_threads: int) -> None:
        _RUNNING.add(self)
        for i in range(num_threads):
            thread = threading.Thread(target=self._do, name=f"tgflow-loader-{i}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _do(self) -> None:
        while self._may_pull():
            ticket = -1
            try:
                try:
                    item = next(self._items)
                except StopIteration:
                    self._pulled(ended=True)
                    return
                ticket = self._pulled(ended=False)
                made = self._make(item)
                result: Callable[[], T] = partial(_returned, made)
            except BaseException as error:  # whatever it is, it is raised in the consumer
                if ticket < 0:  # raised by the iterator of items: nothing can follow
                    ticket = self._pulled(ended=False)
                    self._ended = True
                result = partial(_raised, error)
            with self._changed:
                self._done[ticket] = result
                self._changed.notify_all()

    def _may_pull(self) -> bool:
        """Wait for room and for one's turn at the items; False when they have ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._ended
                    or (
                        self._puller is None
                        and self._num_pulled - self._num_taken < self._lookahead
                    )
                )
            )
            if not self._ended:
                self._puller = threading.current_thread()
            return not self._ended

    def _pulled(self, ended: bool) -> int:
        """Return the ticket of the item just pulled, if they have not ended."""
        with self._changed:
            self._puller = None
            self._ended |= ended
            self._num_pulled += not ended
            self._changed.notify_all()
            return self._num_pulled - 1

    def results(self) -> Iterator[T]:
        """Yield what was made, in order; raises what failed in its place."""

        def is_next() -> bool:
            has_ended = self._ended and self._puller is None
            return self._num_taken in self._done or (
                has_ended and self._num_taken == self._num_pulled
            )

        while True:
            with self._changed:
                self._changed.wait_for(is_next)
                if self._num_taken not in self._done:
                    return
                result = self._done.pop(self._num_taken)
                self._num_taken += 1
                self._changed.notify_all()
            yield result()

    def end(self) -> None:
        """End the threads; one that waits inside the iterator of items ends when that returns."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            waiting = self._puller
        for thread in self._threads:
            is_short = self._may_wait or thread is waiting
            thread.join(timeout=_STREAM_GRACE_SECONDS if is_short else None)
        _RUNNING.discard(self)


def _returned(made: T) -> T:
    return made


def _raised(error: BaseException) -> Any:
    raise error


_RUNNING: WeakSet[_Work[Any, Any]] = WeakSet()


@atexit.register
def _end_all() -> None:
    """End what was not closed: threads in the core at exit would abort the process."""
    for work in [*_RUNNING]:
        work.end()
