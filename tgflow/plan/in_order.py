"""An ordered parallel map over tasks, prepared ahead by threads."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

Task = tuple[int, int] | tuple[int, int, object]
"""Batch to prepare: (epoch, index); (epoch, index, number) for a slice of it; or with decisions
made earlier, see `tgflow.plan.reuse`."""
Item = TypeVar("Item")
T = TypeVar("T")


class BatchError(RuntimeError):
    """Preparing a batch failed; the cause is chained."""


def run_task(prepare: Callable[..., T], task: Task) -> T:
    """Return `prepare(*task)`; raise BatchError if it fails."""
    try:
        return prepare(*task)
    except Exception as error:
        raise batch_error(task, error) from error


def batch_error(task: Task, error: Exception) -> BatchError:
    """Return the error of a batch that could not be prepared."""
    where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
    return BatchError(f"preparing {task_name(task)} failed: {where}{error}")


def task_name(task: Task) -> str:
    """Return the name of a task's batch or slice."""
    epoch, index, *part = task
    slices = "".join(f"slice {each} of " for each in part if isinstance(each, int))
    return f"{slices}batch {index} of epoch {epoch}"


_GRACE_SECONDS = 1.0
_RUNNING: set[Callable[[], None]] = set()


def ordered_map(
    make: Callable[[Item], T],
    items: Iterable[Item],
    *,
    num_threads: int = 1,
    lookahead: int = 1,
    may_wait: bool = False,
) -> Generator[T]:
    """Yield `make(item)` for each item, in their order; raise errors in their place.

    Items are pulled by one thread at a time, and may block, as a stream does; at most `lookahead`
    are pulled and not yet taken. Without threads each is made on demand. A thread that waits in
    `items` is joined for at most a second; with `may_wait` one that waits in `make`, too.
    """
    if num_threads == 0:
        for item in items:
            yield make(item)
        return
    iterator = iter(items)
    room, turn = threading.Semaphore(lookahead), threading.Semaphore()
    made: SimpleQueue[Future[T] | None] = SimpleQueue()  # in the order of items; None: no more
    has_ended = threading.Event()
    pulling: list[threading.Thread] = []

    def work() -> None:
        while True:
            room.acquire()
            slot: Future[T] = Future()
            with turn:
                if has_ended.is_set():
                    break
                pulling.append(threading.current_thread())
                try:
                    item = next(iterator)
                except BaseException as error:  # nothing follows it
                    has_ended.set()
                    if not isinstance(error, StopIteration):
                        slot.set_exception(error)
                        made.put(slot)
                    made.put(None)
                    break
                finally:
                    pulling.clear()
                made.put(slot)
            try:
                slot.set_result(make(item))
            except BaseException as error:  # raised in the consumer
                slot.set_exception(error)
        room.release()  # for the next thread to end

    threads = [
        threading.Thread(target=work, name=f"tgflow-loader-{i}", daemon=True)
        for i in range(num_threads)
    ]

    def end() -> None:
        has_ended.set()
        room.release()
        turn.release()  # threads queued behind one that waits for an item
        for thread in threads:
            thread.join(_GRACE_SECONDS)
            while thread.is_alive() and not may_wait and thread not in pulling:
                thread.join(_GRACE_SECONDS)

    _RUNNING.add(end)
    try:
        for thread in threads:
            thread.start()
        while (slot := made.get()) is not None:
            result = slot.result()
            room.release()
            yield result
    finally:
        end()
        _RUNNING.discard(end)


@atexit.register
def _end_all() -> None:
    """Close open generators: threads in the core at exit would abort the process."""
    for end in [*_RUNNING]:
        end()
