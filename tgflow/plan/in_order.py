"""An ordered parallel map over tasks, prepared ahead by threads."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Task = tuple[int, int] | tuple[int, int, object]
"""Which batch to prepare: (epoch, index); (epoch, index, number) for a slice of it; or with what
was decided of it before, see `tgflow.plan.reuse`."""


class BatchError(RuntimeError):
    """Preparing a batch failed; the cause is chained."""


def run_task(prepare: Callable[..., T], task: Task) -> T:
    """Return what `prepare` makes of a task.

    Raises:
        BatchError: If that fails.
    """
    try:
        return prepare(*task)
    except Exception as error:
        raise batch_error(task, error) from error


def batch_error(task: Task, error: Exception) -> BatchError:
    """Return the error that says which batch could not be prepared, and why."""
    where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
    return BatchError(f"preparing {task_name(task)} failed: {where}{error}")


def task_name(task: Task) -> str:
    """Return what a task prepares, in words."""
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
    """Yield `make(item)` for each item, in their order.

    Items are pulled one at a time, and only when there is room for another, from one thread at a
    time. What fails in `make` or in the iterator of items is raised in its place; the threads end
    then. Closing the generator ends them too; one that waits inside the iterator of items ends when
    that returns, and is not waited for longer than a second.

    Args:
        make: Safe to call from any thread.
        items: Of any iterable.
        num_threads: Threads that make; 0 makes each when it is asked for.
        lookahead: How many may be made or in the making but not taken.
        may_wait: Whether `make` may wait for others, too: then closing waits for no thread longer
            than a second.
    """
    if num_threads == 0:
        for item in items:
            yield make(item)
        return
    work = _Work(make, iter(items), lookahead, may_wait)
    try:
        work.start(num_threads)
        while (made := work.next()) is not None:
            yield made.value
    finally:
        work.end()


def prefetch(items: Iterable[Item], lookahead: int = 1) -> Generator[Item]:
    """Yield `items`, which a thread pulls ahead: what they cost is done meanwhile."""
    return ordered_map(lambda item: item, items, lookahead=lookahead)


def until_failure(items: Iterator[Item], failures: list[BaseException]) -> Generator[Item]:
    """Yield `items` up to the first failure, which is added to `failures` and not raised.

    So whoever knows some items ahead can raise it when its turn has come.
    """
    try:
        yield from items
    except GeneratorExit:
        raise
    except BaseException as error:
        failures.append(error)


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    value: T


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
        self._done: dict[int, _Done[T] | BaseException] = {}
        self._num_pulled = 0
        self._num_taken = 0
        self._puller: threading.Thread | None = None
        self._ended = False

    def start(self, num_threads: int) -> None:
        """Have threads pull and make until the items end, or somebody ends them."""
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
                result: _Done[T] | BaseException = _Done(self._make(item))
            except BaseException as error:  # whatever it is, the consumer must hear of it
                if ticket < 0:  # raised by the iterator of items: nothing can follow
                    ticket = self._pulled(ended=False)
                    self._ended = True
                result = error
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

    def next(self) -> _Done[T] | None:
        """Wait for the next in order; None when the items have ended. Raises what failed."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._num_taken in self._done
                    or (
                        self._ended and self._puller is None and self._num_taken == self._num_pulled
                    )
                )
            )
            if self._num_taken not in self._done:
                return None
            result = self._done.pop(self._num_taken)
            self._num_taken += 1
            self._changed.notify_all()
        if isinstance(result, BaseException):
            raise result
        return result

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


_RUNNING: WeakSet[_Work[Any, Any]] = WeakSet()


@atexit.register
def _end_all() -> None:
    """End what nobody has closed, as where a loop was left by an error that nobody catches.

    Threads that the end of the interpreter finds in the core would abort the process.
    """
    for work in [*_RUNNING]:
        work.end()
