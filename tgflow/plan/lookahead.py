"""Batches whose edge features come through a cache that knows what comes next.

A batch is a pure function of (seed, epoch, index), so batches can be drafted far ahead, and which
rows a window of them will gather is known before the first is read: the *super-batch* of Ginex
(PVLDB 15(11), 2022). While one window is delivered, the next is drafted and planned. What a live
stream will bring nobody knows: there a cache follows recency (`policy="lru"`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from torch import Tensor

from tgflow.cache import CachedTable, Script, TraceMismatch
from tgflow.plan.batch import Batch
from tgflow.plan.belady import BeladyPlanner
from tgflow.plan.draft import Draft
from tgflow.plan.in_order import ahead, in_order
from tgflow.plan.plan import Plan
from tgflow.plan.task import Task, failed, prepared
from tgflow.tables.reading import Reading
from tgflow.tables.rows import Table
from tgflow.tables.selected import SelectedRows

Lookahead = int | Literal["auto"]

READY = 4
"""Batches that may be complete and not yet taken."""
FIRST_WINDOW = 16
"""Batches of the first window of "auto", so that the first batch comes soon; each next one is twice
as long."""
ENOUGH = 64
"""Accesses per row of the cache after which "auto" ends a window. Misses over those of a window
without end, on three real streams: 1.16 to 1.23 at 5 to 10, 1.03 to 1.05 at 30, 1.01 at 120."""
ACCESS_BYTES = 28
"""What an access takes: its id and moves 16, and 24 more in that of two windows being planned."""
LEAST_MEMORY = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A batch of a planned window."""

    task: Task
    draft: Draft | None
    """None: it would have taken too much room, and is to be made again."""
    script: Script


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A step whose turn comes soon."""

    draft: Draft
    script: Script
    missed: Reading | None
    """The rows that it misses, on their way."""


@dataclass(slots=True)
class _Window:
    """A window while its batches are drafted."""

    table: Table
    capacity: int
    room: int
    """Bytes that its accesses may take, and its drafts again as many."""
    tasks: list[Task] = field(default_factory=list)
    drafts: list[Draft | None] = field(default_factory=list)
    traces: list[Tensor] = field(default_factory=list)
    num_accesses: int = 0
    draft_bytes: int = 0
    ended: bool = False
    failure: BaseException | None = None

    def fill(self, drafts: Iterator[tuple[Task, Draft]], size: int, lookahead: Lookahead) -> None:
        """Take up to `size` drafts; what fails is kept for later, as those before it are whole."""
        while len(self.tasks) < size and not (lookahead == "auto" and self._is_enough()):
            try:
                task, draft = next(drafts)
            except StopIteration:
                self.ended = True
                return
            except BaseException as error:
                self.failure = error
                return
            self._add(task, draft)

    def _is_enough(self) -> bool:
        too_much = self.num_accesses * ACCESS_BYTES >= self.room
        return bool(self.tasks) and (too_much or self.num_accesses >= ENOUGH * self.capacity)

    def _add(self, task: Task, draft: Draft) -> None:
        self.tasks.append(task)
        self.traces.append(ids_beneath(self.table, draft.edges[1:]))
        self.num_accesses += len(draft.edges) - 1
        self.draft_bytes += draft.nbytes
        self.drafts.append(draft if self.draft_bytes <= self.room else None)

    def planned(self, planner: BeladyPlanner) -> list[_Step]:
        """Return what is to be done, batch by batch."""
        scripts = planner.plan(self.traces)
        return [_Step(*step) for step in zip(self.tasks, self.drafts, scripts, strict=True)]


def planned_cache(table: Table | None) -> CachedTable | None:
    """Return the cache through which `table` is read, if it is one that is to be planned for."""
    while isinstance(table, SelectedRows):
        table = table.table
    return table if isinstance(table, CachedTable) and table.policy == "belady" else None


def ids_beneath(table: Table, ids: Tensor) -> Tensor:
    """Return the ids that a cache beneath `table` knows the rows of `ids` by."""
    while isinstance(table, SelectedRows):
        ids, table = table.ids_of(ids), table.table
    return ids


def check_unplanned(table: Table | None) -> None:
    """Raise ValueError if edge features come through a cache that needs a future to plan for."""
    if planned_cache(table) is not None:
        raise ValueError(
            'the edge features\' cache has policy="belady", which plans for what comes next, and a '
            'live stream has no future to know; use policy="lru"'
        )


def planned_batches(
    plan: Plan, cache: CachedTable, tasks: Iterable[Task], *, lookahead: Lookahead, num_threads: int
) -> Iterator[Batch]:
    """Yield the batches of `tasks`, in order: the same as `plan.batch` makes, at fewer misses.

    Contents of the cache carry over from window to window, and from one call to the next. Only one
    call may be at work on a cache at a time.

    Args:
        plan: Whose batches.
        cache: What the plan's edge features are read through.
        tasks: A window of them is pulled and drafted before the first of it is delivered.
        lookahead: Batches to know ahead. "auto" begins with few, and each window has twice as many
            as the one before, until it knows 64 accesses per row of the cache, or two windows would
            take more than a quarter of the cache's bytes (at least 32 MiB).
        num_threads: Threads that draft; as many begin to read from a disk what soon comes, one more
            plans and one gathers. 0: all is done when a batch is asked for.

    Raises:
        BatchError: If a batch cannot be prepared, in its place.
        TraceMismatch: If others have changed what the cache holds; it names the batch and the id.
    """
    table = plan.graph.edge_x
    assert table is not None
    room = max(LEAST_MEMORY, cache.cache_nbytes // 4) // 4
    drafts = in_order(
        partial(_drafted, plan), tasks, num_threads=num_threads, lookahead=2 * num_threads
    )
    windows = _windows(drafts, partial(_Window, table, cache.capacity, room), cache, lookahead)
    if num_threads > 0:
        windows = ahead(windows)
    begun = in_order(
        partial(_begun, plan, cache), _steps(windows), num_threads=num_threads, lookahead=READY
    )
    batches = _gathered(begun, table, cache)
    return ahead(batches, READY) if num_threads > 0 else batches


def _drafted(plan: Plan, task: Task) -> tuple[Task, Draft]:
    return task, prepared(plan.draft, task)


def _windows(
    drafts: Generator[tuple[Task, Draft]],
    begin: Callable[[], _Window],
    cache: CachedTable,
    lookahead: Lookahead,
) -> Generator[list[_Step]]:
    """Plan window after window. A draft that fails ends the last one, and is raised after it."""
    planner = BeladyPlanner(cache.capacity, cache.contents())
    size = FIRST_WINDOW if lookahead == "auto" else lookahead
    with closing(drafts):
        window = None
        while window is None or not window.ended:
            window = begin()
            window.fill(drafts, size, lookahead)
            if window.tasks:
                yield window.planned(planner)
            if window.failure is not None:
                raise window.failure
            if lookahead == "auto":
                size *= 2


def _steps(windows: Generator[list[_Step]]) -> Generator[_Step]:
    """Yield the steps of the windows, and let go of each."""
    with closing(windows):
        for window in windows:
            window.reverse()
            while window:
                yield window.pop()


def _begun(plan: Plan, cache: CachedTable, step: _Step) -> _Begun:
    """Draft a step again if its draft was not kept, and begin to read what it misses."""
    draft = prepared(plan.draft, step.task) if step.draft is None else step.draft
    try:
        return _Begun(draft, step.script, cache.start(step.script))
    except Exception as error:
        raise failed(step.task, error) from error


def _gathered(steps: Generator[_Begun], table: Table, cache: CachedTable) -> Generator[Batch]:
    """Gather one batch after the other, as the cache's contents were planned."""
    with closing(steps):
        for step in steps:
            task = (step.draft.batch.epoch, step.draft.batch.index)
            ids = ids_beneath(table, step.draft.edges)
            try:
                rows = cache.execute(step.script, ids, missed=step.missed)
            except TraceMismatch as error:
                raise TraceMismatch(f"batch {task[1]} of epoch {task[0]}: {error}") from error
            except Exception as error:
                raise failed(task, error) from error
            yield step.draft.finished(rows)
