"""Batches whose features come through caches that know what comes next.

A batch is a pure function of (seed, epoch, index), so batches can be drafted far ahead, and which
rows a window of them will gather is known before the first is read: the *super-batch* of Ginex
(PVLDB 15(11), 2022). Here the window moves on with every batch that is planned, so that the last
one knows as much as the first. Caches of edge and of node features are planned apart, each with its
own size and contents. What a live stream will bring nobody knows: there a cache follows recency
(`policy="lru"`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.cache import CachedTable, CacheSchedule, ScheduleMismatch
from tgflow.plan._native import Belady
from tgflow.plan.in_order import (
    Task,
    batch_error,
    ordered_map,
    prefetch,
    run_task,
    task_name,
    until_failure,
)
from tgflow.plan.pending import Feature, FeatureInput, PendingBatch, feature_inputs
from tgflow.plan.plan import Plan
from tgflow.plan.reuse import ReusingPlan
from tgflow.tables.table import PendingGather
from tgflow.units import INT64_MAX


class BeladyPlanner:
    """Plans what a cache of `num_slots` rows holds, batch by batch, from batches observed ahead.

    Belady's replacement with bypass (IBM Systems Journal 5(2), 1966): after each batch the cache
    holds, of what it held and what the batch read, the rows whose next uses are nearest. If it
    observed all batches before it plans the first, no plan has fewer misses. Ginex (PVLDB 15(11),
    2022) does so for node features, but refills the cache for every super-batch; here contents
    carry over, and the window of known batches moves on batch by batch. Uses that were not observed
    count as later than all known ones, and of those the row used last stays.

    Costs O(1) an access, without the GIL; takes 8 bytes for each access observed and not planned,
    40-56 for each id among them or in the cache, 12 a slot. Not to be called from two threads at
    once.

    Args:
        num_slots: Rows that the cache can hold, at least 0.
        contents: The id in each slot, -1 for none, int64 `[num_slots]`; None: all slots are free.

    Raises:
        ValueError: If an argument has another dtype or shape, or is out of range.
    """

    def __init__(self, num_slots: int, contents: Tensor | None = None) -> None:
        if contents is None:
            self._native = Belady(num_slots, None)
        else:
            self._native = Belady(num_slots, contents.cpu().contiguous())

    def __len__(self) -> int:
        """Return how many batches were observed and are not planned."""
        return self._native.num_batches

    @property
    def num_accesses(self) -> int:
        """Accesses of those batches."""
        return self._native.num_accesses

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._native.bytes

    def observe(self, ids: Tensor) -> None:
        """Observe what the batch after those observed so far will gather.

        Args:
            ids: Distinct ids, int64 `[D]`, on the CPU.

        Raises:
            ValueError: If an id is negative or comes twice; it is not observed then.
        """
        self._native.observe(ids.contiguous())

    def plan(self) -> CacheSchedule:
        """Return what the cache is to do at the first batch not yet planned, and count on it.

        Raises:
            IndexError: If there is none.
        """
        if len(self) == 0:
            raise IndexError("all observed batches are planned; observe the next one first")
        ids = torch.empty(self._native.next_size, dtype=torch.int64)
        hit = torch.empty(len(ids), dtype=torch.int32)
        admit = torch.empty_like(hit)
        self._native.plan_next(ids, hit, admit)
        return CacheSchedule(ids, hit, admit)

    def contents(self) -> Tensor:
        """Return the id in each slot after all that was planned, -1 for none."""
        ids = torch.empty(self._native.num_slots, dtype=torch.int64)
        self._native.contents(ids)
        return ids


def plan_all(
    planner: BeladyPlanner, batches: Iterable[Tensor], lookahead: int | None = None
) -> Iterator[CacheSchedule]:
    """Yield a schedule for each of `batches`, knowing `lookahead` of them at a time; None: all."""
    for ids in batches:
        planner.observe(ids)
        if len(planner) == lookahead:
            yield planner.plan()
    while len(planner) > 0:
        yield planner.plan()


Lookahead = int | Literal["auto"]
AnyPlan = Plan | ReusingPlan

PREFETCH_BATCHES = 4
"""Batches that may be complete and not yet taken."""
INITIAL_WINDOW = 16
"""Batches that "auto" knows before it plans the first, so that this comes soon; then one more with
each that it plans."""
MAX_ACCESSES_PER_ROW = 32
"""Accesses per row of the cache that "auto" knows at most. Misses over those of full knowledge, of
TGN and TGAT on three real streams: up to 1.17 at 4, 1.11 at 8, 1.05 at 16 and 1.01 at 32."""
MIN_WINDOW_BYTES = 32 << 20
CONTENTS_BYTES = 68
"""What a planner takes at most to know what is in a slot."""


@dataclass(frozen=True, slots=True, eq=False)
class _Planned:
    """A table that is read through a cache whose moves are planned."""

    table: FeatureInput
    cache: CachedTable

    @property
    def name(self) -> Feature:
        return self.table.name


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """A batch that is to be planned."""

    task: Task
    pending: PendingBatch
    traces: list[Tensor]
    """Of each planned table, the distinct ids that it will be asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Scheduled:
    """A planned batch."""

    task: Task
    pending: PendingBatch | None
    """None: it would have taken too much room, and is to be made again."""
    schedules: tuple[CacheSchedule, ...]
    """Of each planned table."""


@dataclass(frozen=True, slots=True, eq=False)
class _Started:
    """A step whose turn comes soon."""

    task: Task
    pending: PendingBatch
    schedules: tuple[CacheSchedule, ...]
    missed: list[PendingGather | None]
    """Of each planned table the rows that it misses, on their way."""
    rows: dict[Feature, Tensor]
    """What comes from tables that are not planned."""


class _Window:
    """Batches that are drafted and not planned, and planners that know them."""

    def __init__(self, planned: list[_Planned], lookahead: Lookahead) -> None:
        caches = [one.cache for one in planned]
        self._planners = [BeladyPlanner(cache.capacity, cache.contents()) for cache in caches]
        self._capacities = [cache.capacity for cache in caches]
        self._room = max(
            MIN_WINDOW_BYTES + CONTENTS_BYTES * sum(self._capacities),
            sum(cache.cache_nbytes for cache in caches) // 4,
        )
        self._most_accesses = INT64_MAX
        self._is_auto = lookahead == "auto"
        self._most = INITIAL_WINDOW if lookahead == "auto" else lookahead
        self._waiting: deque[tuple[Task, PendingBatch | None]] = deque()
        self._draft_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, drafted: _Pending) -> None:
        """Let the planners observe it, and keep the draft if there is room."""
        for planner, ids in zip(self._planners, drafted.traces, strict=True):
            planner.observe(ids)
        if self._most_accesses == INT64_MAX and self._nbytes() >= self._room:
            self._most_accesses = self._num_accesses()  # a planner never gives memory back
        keeps = self._draft_bytes + drafted.pending.nbytes <= MIN_WINDOW_BYTES
        self._draft_bytes += keeps * drafted.pending.nbytes
        self._waiting.append((drafted.task, drafted.pending if keeps else None))

    def is_enough(self) -> bool:
        """Return whether the first batch is to be planned with what is known."""
        if len(self) >= self._most:
            return True
        pairs = zip(self._planners, self._capacities, strict=True)
        return (
            self._is_auto
            and len(self) > 0
            and (
                self._num_accesses() >= self._most_accesses
                or all(
                    planner.num_accesses >= MAX_ACCESSES_PER_ROW * rows for planner, rows in pairs
                )
            )
        )

    def _nbytes(self) -> int:
        return sum(planner.nbytes for planner in self._planners)

    def _num_accesses(self) -> int:
        return sum(planner.num_accesses for planner in self._planners)

    def plan(self) -> _Scheduled:
        """Plan the first batch."""
        task, draft = self._waiting.popleft()
        self._draft_bytes -= 0 if draft is None else draft.nbytes
        self._most += self._is_auto
        return _Scheduled(task, draft, tuple(planner.plan() for planner in self._planners))


def is_planned(plan: AnyPlan) -> bool:
    """Return whether features of `plan` come through a cache that is to be planned for."""
    return any(table.planned_cache is not None for table in feature_inputs(plan.graph))


def planned_batches(
    plan: AnyPlan, tasks: Iterable[Task], *, lookahead: Lookahead, num_threads: int
) -> Iterator[Batch]:
    """Yield the batches of `tasks`, in order: the same as `plan.batch` makes, at fewer misses.

    Contents of caches carry over from one call to the next. Only one call may be at work on a cache
    at a time.

    Args:
        plan: Whose batches; one table of its graph at least is read through a cache to plan for.
        tasks: As many as are to be known are pulled and drafted before the first is delivered.
        lookahead: Batches to know ahead. "auto" begins with 16 and knows one more with each that it
            delivers, until it knows 32 accesses per row of each cache, or planning takes a quarter
            of the caches' bytes (at least 32 MiB beside 68 bytes a row of them); from then on it
            knows as much as at that time. Drafts take 32 MiB more; those for which there is no
            room are made twice.
        num_threads: Threads that draft; as many plan and begin to read from a disk what soon comes,
            and one more gathers. 0: all is done when a batch is asked for.

    Raises:
        BatchError: If a batch cannot be prepared, in its place.
        ScheduleMismatch: If others have changed what a cache holds; it names the batch, the table
            and the id.
    """
    inputs = feature_inputs(plan.graph)
    caches = [(table, table.planned_cache) for table in inputs]
    planned = [_Planned(table, cache) for table, cache in caches if cache is not None]
    others = [table for table, cache in caches if cache is None]
    drafts = ordered_map(
        partial(_pending, plan, planned), tasks, num_threads=num_threads, lookahead=2 * num_threads
    )
    started = ordered_map(
        partial(_start, plan, planned, others),
        _steps(drafts, _Window(planned, lookahead)),
        num_threads=num_threads,
        lookahead=PREFETCH_BATCHES,
    )
    batches = _gather(started, planned)
    return prefetch(batches, PREFETCH_BATCHES) if num_threads > 0 else batches


def _pending(plan: AnyPlan, planned: list[_Planned], task: Task) -> _Pending:
    draft = run_task(plan.pending, task)
    return _Pending(task, draft, [one.table.trace(draft) for one in planned])


def _steps(drafts: Generator[_Pending], known: _Window) -> Generator[_Scheduled]:
    """Plan batch after batch. A draft that fails is raised after those before it."""
    failures: list[BaseException] = []
    with closing(drafts):
        for drafted in until_failure(drafts, failures):
            known.add(drafted)
            while known.is_enough():
                yield known.plan()
        while len(known) > 0:
            yield known.plan()
    for failure in failures:
        raise failure


def _start(
    plan: AnyPlan, planned: list[_Planned], others: list[FeatureInput], step: _Scheduled
) -> _Started:
    """Prepare a step again if it was not kept, and read what needs no turn.

    That is the rows of tables that are not planned, and those that the planned ones will miss.
    """
    draft = run_task(plan.pending, step.task) if step.pending is None else step.pending
    missed = []
    try:
        for one, schedule in zip(planned, step.schedules, strict=True):
            with one.table.error_context():
                missed.append(one.cache.start(schedule))
        rows = {table.name: table.gather(draft) for table in others}
    except Exception as error:
        raise batch_error(step.task, error) from error
    return _Started(step.task, draft, step.schedules, missed, rows)


def _gather(steps: Generator[_Started], planned: list[_Planned]) -> Generator[Batch]:
    """Gather one batch after the other, as the caches' contents were planned."""
    with closing(steps):
        for step in steps:
            rows = dict(step.rows)
            for one, schedule, missed in zip(planned, step.schedules, step.missed, strict=True):
                rows[one.name] = _apply(one, step, schedule, missed)
            yield step.pending.with_features(rows)


def _apply(
    one: _Planned, step: _Started, schedule: CacheSchedule, missed: PendingGather | None
) -> Tensor:
    """Return the rows of a planned table, and make its cache's moves."""
    try:
        with one.table.error_context():
            return one.cache.apply(schedule, one.table.base_ids(step.pending), missed=missed)
    except ScheduleMismatch as error:
        raise ScheduleMismatch(f"{task_name(step.task)}, {one.name}: {error}") from error
    except Exception as error:
        raise batch_error(step.task, error) from error
