"""Batches whose features come through caches that know what comes next.

A batch is a pure function of (seed, epoch, index), so batches can be drafted far ahead, and which
rows a window of them will gather is known before the first is read: the *super-batch* of Ginex
(PVLDB 15(11), 2022). While one window is delivered, the next is drafted and planned, for the cache
of edge features and for that of node features, each with its own size and contents. What a live
stream will bring nobody knows: there a cache follows recency (`policy="lru"`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from torch import Tensor

from tgflow.cache import CachedTable, Script, TraceMismatch
from tgflow.plan.batch import Batch
from tgflow.plan.belady import BeladyPlanner
from tgflow.plan.draft import Draft, Feature
from tgflow.plan.in_order import ahead, in_order
from tgflow.plan.inputs import Input, inputs_of
from tgflow.plan.plan import Plan
from tgflow.plan.task import Task, failed, prepared
from tgflow.tables.reading import Reading

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
class _Planned:
    """A table that is read through a cache whose moves are planned."""

    table: Input
    cache: CachedTable

    @property
    def name(self) -> Feature:
        return self.table.name


@dataclass(frozen=True, slots=True, eq=False)
class _Drafted:
    """A batch that is to be planned."""

    task: Task
    draft: Draft
    traces: list[Tensor]
    """Of each planned table, the distinct ids that it will be asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A batch of a planned window."""

    task: Task
    draft: Draft | None
    """None: it would have taken too much room, and is to be made again."""
    scripts: tuple[Script, ...]
    """Of each planned table."""


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A step whose turn comes soon."""

    task: Task
    draft: Draft
    scripts: tuple[Script, ...]
    missed: list[Reading | None]
    """Of each planned table the rows that it misses, on their way."""
    rows: dict[Feature, Tensor]
    """What comes from tables that are not planned."""


@dataclass(slots=True)
class _Window:
    """A window while its batches are drafted."""

    capacities: list[int]
    """Of each planned table's cache."""
    room: int
    """Bytes that its accesses may take, and its drafts again as many."""
    tasks: list[Task] = field(default_factory=list)
    drafts: list[Draft | None] = field(default_factory=list)
    traces: list[list[Tensor]] = field(init=False)
    """Of each planned table, batch by batch."""
    num_accesses: list[int] = field(init=False)
    draft_bytes: int = 0
    ended: bool = False
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.traces = [[] for _ in self.capacities]
        self.num_accesses = [0] * len(self.capacities)

    def fill(self, drafts: Iterator[_Drafted], size: int, lookahead: Lookahead) -> None:
        """Take up to `size` drafts; what fails is kept for later, as those before it are whole."""
        while len(self.tasks) < size and not (lookahead == "auto" and self._is_enough()):
            try:
                drafted = next(drafts)
            except StopIteration:
                self.ended = True
                return
            except BaseException as error:
                self.failure = error
                return
            self._add(drafted)

    def _is_enough(self) -> bool:
        too_much = sum(self.num_accesses) * ACCESS_BYTES >= self.room
        pairs = zip(self.num_accesses, self.capacities, strict=True)
        return bool(self.tasks) and (too_much or all(num >= ENOUGH * rows for num, rows in pairs))

    def _add(self, drafted: _Drafted) -> None:
        self.tasks.append(drafted.task)
        for i, trace in enumerate(drafted.traces):
            self.traces[i].append(trace)
            self.num_accesses[i] += len(trace)
        self.draft_bytes += drafted.draft.nbytes
        self.drafts.append(drafted.draft if self.draft_bytes <= self.room else None)

    def planned(self, planners: list[BeladyPlanner]) -> list[_Step]:
        """Return what is to be done, batch by batch."""
        each = [one.plan(traces) for one, traces in zip(planners, self.traces, strict=True)]
        scripts = zip(*each, strict=True)
        return [_Step(*step) for step in zip(self.tasks, self.drafts, scripts, strict=True)]


def is_planned(plan: Plan) -> bool:
    """Return whether features of `plan` come through a cache that is to be planned for."""
    return any(table.planned_cache is not None for table in inputs_of(plan.graph))


def planned_batches(
    plan: Plan, tasks: Iterable[Task], *, lookahead: Lookahead, num_threads: int
) -> Iterator[Batch]:
    """Yield the batches of `tasks`, in order: the same as `plan.batch` makes, at fewer misses.

    Contents of caches carry over from window to window, and from one call to the next. Only one
    call may be at work on a cache at a time.

    Args:
        plan: Whose batches; one table of its graph at least is read through a cache to plan for.
        tasks: A window of them is pulled and drafted before the first of it is delivered.
        lookahead: Batches to know ahead. "auto" begins with few, and each window has twice as many
            as the one before, until it knows 64 accesses per row of each cache, or two windows
            would take more than a quarter of the caches' bytes (at least 32 MiB).
        num_threads: Threads that draft; as many begin to read from a disk what soon comes, one more
            plans and one gathers. 0: all is done when a batch is asked for.

    Raises:
        BatchError: If a batch cannot be prepared, in its place.
        TraceMismatch: If others have changed what a cache holds; it names the batch, the table and
            the id.
    """
    inputs = inputs_of(plan.graph)
    caches = [(table, table.planned_cache) for table in inputs]
    planned = [_Planned(table, cache) for table, cache in caches if cache is not None]
    others = [table for table, cache in caches if cache is None]
    drafts = in_order(
        partial(_drafted, plan, planned), tasks, num_threads=num_threads, lookahead=2 * num_threads
    )
    windows = _windows(drafts, planned, lookahead)
    if num_threads > 0:
        windows = ahead(windows)
    begun = in_order(
        partial(_begun, plan, planned, others),
        _steps(windows),
        num_threads=num_threads,
        lookahead=READY,
    )
    batches = _gathered(begun, planned)
    return ahead(batches, READY) if num_threads > 0 else batches


def _drafted(plan: Plan, planned: list[_Planned], task: Task) -> _Drafted:
    draft = prepared(plan.draft, task)
    return _Drafted(task, draft, [one.table.trace(draft) for one in planned])


def _windows(
    drafts: Generator[_Drafted], planned: list[_Planned], lookahead: Lookahead
) -> Generator[list[_Step]]:
    """Plan window after window. A draft that fails ends the last one, and is raised after it."""
    caches = [one.cache for one in planned]
    planners = [BeladyPlanner(cache.capacity, cache.contents()) for cache in caches]
    room = max(LEAST_MEMORY, sum(cache.cache_nbytes for cache in caches) // 4) // 4
    size = FIRST_WINDOW if lookahead == "auto" else lookahead
    with closing(drafts):
        window = None
        while window is None or not window.ended:
            window = _Window([cache.capacity for cache in caches], room)
            window.fill(drafts, size, lookahead)
            if window.tasks:
                yield window.planned(planners)
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


def _begun(plan: Plan, planned: list[_Planned], others: list[Input], step: _Step) -> _Begun:
    """Draft a step again if its draft was not kept, and read what needs no turn.

    That is the rows of tables that are not planned, and those that the planned ones will miss.
    """
    draft = prepared(plan.draft, step.task) if step.draft is None else step.draft
    missed = []
    try:
        for one, script in zip(planned, step.scripts, strict=True):
            with one.table.named():
                missed.append(one.cache.start(script))
        rows = {table.name: table.gather(draft) for table in others}
    except Exception as error:
        raise failed(step.task, error) from error
    return _Begun(step.task, draft, step.scripts, missed, rows)


def _gathered(steps: Generator[_Begun], planned: list[_Planned]) -> Generator[Batch]:
    """Gather one batch after the other, as the caches' contents were planned."""
    with closing(steps):
        for step in steps:
            rows = dict(step.rows)
            for one, script, missed in zip(planned, step.scripts, step.missed, strict=True):
                rows[one.name] = _executed(one, step, script, missed)
            yield step.draft.finished(rows)


def _executed(one: _Planned, step: _Begun, script: Script, missed: Reading | None) -> Tensor:
    """Return the rows of a planned table, and make its cache's moves."""
    epoch, index = step.task
    try:
        with one.table.named():
            return one.cache.execute(script, one.table.ids_beneath(step.draft), missed=missed)
    except TraceMismatch as error:
        raise TraceMismatch(f"batch {index} of epoch {epoch}, {one.name}: {error}") from error
    except Exception as error:
        raise failed(step.task, error) from error
