"""The loader: batches prepared ahead by threads, delivered in order."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tgflow.plan.batch import Batch

Task = tuple[int, int]
"""Which batch to prepare: (epoch, index)."""


_STREAM_GRACE_SECONDS = 1.0


class BatchSource(Protocol):
    """What can be loaded; `tgflow.Plan` is one. `batch` must be safe to call from any thread."""

    def __len__(self) -> int: ...

    def batch(self, epoch: int, index: int) -> Batch:
        """Return batch `index` of `epoch`."""
        ...


class BatchError(RuntimeError):
    """Preparing a batch failed; the cause is chained."""


class Loader:
    """Prepares batches ahead on threads and yields them in the order of their tasks.

    Tasks are pulled one at a time, and only when there is room for another batch, so an iterator
    of tasks may itself read a stream: while it waits for more, what is prepared is delivered. With
    threads it is pulled from one of them, never from two at once.

    What fails in preparing a batch, or in the iterator of tasks, is raised where that batch would
    have been yielded; the threads end then. Closing the iterator early (`close()`, or leaving the
    scope of a generator) ends them too; one that waits inside the iterator of tasks ends when that
    returns, and is not waited for longer than a second.

    Args:
        plan: Where batches come from.
        epoch: Epoch of the batches.
        indices: Their indices, in order, of any iterable; None is every batch that the plan has
            when iteration begins. See `of_tasks` for tasks of several epochs.
        num_threads: Threads that prepare; 0 prepares each batch when it is asked for.
        lookahead: Batches that may be prepared or in preparation but not delivered, at least 1.

    Raises:
        ValueError: If `num_threads` or `lookahead` is out of range.
    """

    def __init__(
        self,
        plan: BatchSource,
        epoch: int = 0,
        indices: Iterable[int] | None = None,
        *,
        num_threads: int = 1,
        lookahead: int = 4,
    ) -> None:
        if num_threads < 0:
            raise ValueError(f"num_threads must be at least 0, got {num_threads}")
        if lookahead < 1:
            raise ValueError(f"lookahead must be at least 1 batch, got {lookahead}")
        self._plan = plan
        self._tasks: Iterable[Task] = _EpochTasks(plan, epoch, indices)
        self._num_threads = num_threads
        self._lookahead = lookahead

    @classmethod
    def of_tasks(
        cls, plan: BatchSource, tasks: Iterable[Task], *, num_threads: int = 1, lookahead: int = 4
    ) -> Loader:
        """Return a loader of any (epoch, index) tasks, pulled lazily from an iterable."""
        loader = cls(plan, num_threads=num_threads, lookahead=lookahead)
        loader._tasks = tasks
        return loader

    def __iter__(self) -> Iterator[Batch]:
        if self._num_threads == 0:
            return (_prepare(self._plan, task) for task in self._tasks)
        preparation = _Preparation(self._plan, iter(self._tasks), self._lookahead)
        return _deliver(preparation, self._num_threads)


@dataclass(frozen=True)
class _EpochTasks:
    plan: BatchSource
    epoch: int
    indices: Iterable[int] | None

    def __iter__(self) -> Iterator[Task]:
        indices = range(len(self.plan)) if self.indices is None else self.indices
        return ((self.epoch, index) for index in indices)


def _prepare(plan: BatchSource, task: Task) -> Batch:
    epoch, index = task
    try:
        return plan.batch(epoch, index)
    except Exception as error:
        raise BatchError(f"preparing batch {index} of epoch {epoch} failed: {error}") from error


def _deliver(preparation: _Preparation, num_threads: int) -> Iterator[Batch]:
    """Yield what `num_threads` threads prepare; end them when it is over or given up."""
    threads = [
        threading.Thread(target=preparation.work, name=f"tgflow-loader-{i}", daemon=True)
        for i in range(num_threads)
    ]
    try:
        for thread in threads:
            thread.start()
        while (batch := preparation.next()) is not None:
            yield batch
    finally:
        waiting = preparation.close()
        for thread in threads:
            if thread.ident is not None:
                thread.join(timeout=_STREAM_GRACE_SECONDS if thread is waiting else None)


class _Preparation:
    """Tickets between the threads that prepare batches and the one that takes them, in order."""

    def __init__(self, plan: BatchSource, tasks: Iterator[Task], lookahead: int) -> None:
        self._plan = plan
        self._tasks = tasks
        self._lookahead = lookahead
        self._changed = threading.Condition()
        self._done: dict[int, Batch | BaseException] = {}
        self._num_pulled = 0
        self._num_taken = 0
        self._puller: threading.Thread | None = None
        self._ended = False

    def work(self) -> None:
        """Pull and prepare until the tasks end."""
        while self._may_pull():
            ticket = -1
            try:
                task = next(self._tasks, None)
                ticket = self._pulled(ended=task is None)
                if task is None:
                    return
                result: Batch | BaseException = _prepare(self._plan, task)
            except BaseException as error:  # whatever it is, the consumer must hear of it
                if ticket < 0:  # raised by the iterator of tasks: nothing can follow
                    ticket = self._pulled(ended=False)
                    self._ended = True
                result = error
            with self._changed:
                self._done[ticket] = result
                self._changed.notify_all()

    def _may_pull(self) -> bool:
        """Wait for room and for one's turn at the tasks; False when they have ended."""
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
        """Return the ticket of the task just pulled, if the tasks have not ended."""
        with self._changed:
            self._puller = None
            self._ended |= ended
            self._num_pulled += not ended
            self._changed.notify_all()
            return self._num_pulled - 1

    def next(self) -> Batch | None:
        """Wait for the next batch in order; None when the tasks have ended.

        Raises:
            BatchError: If preparing it failed. What the iterator of tasks raises comes as it is.
        """
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

    def close(self) -> threading.Thread | None:
        """Let every thread end; return the one that is inside the iterator of tasks, if any."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            return self._puller
