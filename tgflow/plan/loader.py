"""The loader: batches prepared ahead by threads, delivered in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tgflow.batch import Batch
from tgflow.plan.in_order import ordered_map
from tgflow.plan.lookahead import PREFETCH_BATCHES, Lookahead, is_planned, planned_batches
from tgflow.plan.plan import Plan
from tgflow.plan.task import Task, run_task


class BatchSource(Protocol):
    """What can be loaded; `tgflow.Plan` is one. `batch` must be safe to call from any thread."""

    def __len__(self) -> int: ...

    def batch(self, epoch: int, index: int) -> Batch:
        """Return batch `index` of `epoch`."""
        ...


class Loader:
    """Prepares batches ahead on threads and yields them in the order of their tasks.

    Tasks are pulled one at a time, and only when there is room for another batch, so an iterator
    of tasks may itself read a stream: while it waits for more, what is prepared is delivered. With
    threads it is pulled from one of them, never from two at once.

    What fails in preparing a batch, or in the iterator of tasks, is raised where that batch would
    have been yielded; the threads end then. Closing the iterator early (`close()`, or leaving the
    scope of a generator) ends them too; one that waits inside the iterator of tasks ends when that
    returns, and is not waited for longer than a second.

    If a plan's edge or node features come through a cache with `policy="belady"`, `lookahead`
    batches are drafted before the first is delivered, so that the cache knows what comes next; see
    `tgflow.plan.lookahead`. The batches are the same, whatever the caches, `lookahead` or threads.

    Args:
        plan: Where batches come from.
        epoch: Epoch of the batches.
        indices: Their indices, in order, of any iterable; None is every batch that the plan has
            when iteration begins. See `of_tasks` for tasks of several epochs.
        num_threads: Threads that prepare; 0 prepares each batch when it is asked for.
        lookahead: Batches that may be prepared or in preparation but not delivered, at least 1.
            "auto": 4; under `policy="belady"` as many as pay, within a quarter of the caches' size.

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
        lookahead: Lookahead = "auto",
    ) -> None:
        if num_threads < 0:
            raise ValueError(f"num_threads must be at least 0, got {num_threads}")
        if lookahead != "auto" and lookahead < 1:
            raise ValueError(f'lookahead must be at least 1 batch or "auto", got {lookahead}')
        self._plan = plan
        self._tasks: Iterable[Task] = _EpochTasks(plan, epoch, indices)
        self._num_threads = num_threads
        self._lookahead = lookahead

    @classmethod
    def of_tasks(
        cls,
        plan: BatchSource,
        tasks: Iterable[Task],
        *,
        num_threads: int = 1,
        lookahead: Lookahead = "auto",
    ) -> Loader:
        """Return a loader of any (epoch, index) tasks, pulled lazily from an iterable."""
        loader = cls(plan, num_threads=num_threads, lookahead=lookahead)
        loader._tasks = tasks
        return loader

    def __iter__(self) -> Iterator[Batch]:
        plan, ahead, num_threads = self._plan, self._lookahead, self._num_threads
        if isinstance(plan, Plan) and is_planned(plan):
            return planned_batches(plan, self._tasks, lookahead=ahead, num_threads=num_threads)
        return ordered_map(
            partial(run_task, plan.batch),
            self._tasks,
            num_threads=num_threads,
            lookahead=PREFETCH_BATCHES if ahead == "auto" else ahead,
        )


@dataclass(frozen=True)
class _EpochTasks:
    plan: BatchSource
    epoch: int
    indices: Iterable[int] | None

    def __iter__(self) -> Iterator[Task]:
        indices = range(len(self.plan)) if self.indices is None else self.indices
        return ((self.epoch, index) for index in indices)
