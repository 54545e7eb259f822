"""The loader: batches prefetched by threads and delivered in order.

Caches of features may be planned from batches drafted ahead. The window of drafted
batches, the *super-batch* of Ginex (PVLDB 15(11), 2022), advances with every planned batch.
Caches of edge and of node features are planned separately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from tgflow.base.describe import described
from tgflow.base.units import INT64_MAX
from tgflow.cuda.device import Device, StreamEvent, device_of
from tgflow.graph.batch import Batch, Share
from tgflow.graph.cache import CachedTable, CacheSchedule, ScheduleMismatch
from tgflow.graph.tables.table import PendingGather
from tgflow.plan._native import Belady, Feature
from tgflow.plan.assemble import PendingBatch, feature_inputs
from tgflow.plan.device_preparer import LentBatches, MakeBatches, PinnedCopies
from tgflow.plan.in_order import Item, T, Task, batch_error, ordered_map, run_task, task_name
from tgflow.plan.plan import Plan
from tgflow.plan.reuse import ReusingPlan


@dataclass(frozen=True, slots=True, eq=False)
class ReadyBatches:
    """Batches on a GPU that are being made."""

    lent: LentBatches
    done: StreamEvent


class SideStream:
    """Makes batches on a stream of its own, and passes them to another."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._stream = gpu.stream("batches")
        self._out: dict[ReadyBatches, None] = {}
        """Batches that are not freed."""

    def make(self, prepare: Callable[[T], LentBatches], item: T) -> ReadyBatches:
        """Return `prepare(item)`, queued on this stream. Thread-safe."""
        with self._gpu.on(self._stream):
            ready = ReadyBatches(prepare(item), self._gpu.record_event())
        self._out[ready] = None
        return ready

    def take(self, ready: ReadyBatches) -> Sequence[Batch]:
        """Return batches for the current stream, whose later work waits for them."""
        self._gpu.wait_event(ready.done)
        lent = ready.lent
        if lent.num_used is not None and not ready.done.query():
            ready.done.synchronize()
        batches = lent.cut()
        if lent.slot is None:
            for column in (column for batch in batches for column in batch.tensors()):
                self._gpu.keep_for_current_stream(column)
        return batches

    def free(self, ready: ReadyBatches) -> None:
        """Release the memory of batches after the current stream's work so far."""
        del self._out[ready]
        ready.lent.free()

    def end(self) -> None:
        """Make the current stream wait for all work queued on this one, and free it."""
        with self._gpu.on(self._stream):
            done = self._gpu.record_event()
        self._gpu.wait_event(done)
        for ready in [*self._out]:
            self.free(ready)


def sliced_tasks(tasks: Iterable[Task], wanted: range) -> Iterator[Task]:
    """Yield a task for each wanted slice of each batch, in order; tasks are pulled lazily."""
    return ((task[0], task[1], number) for task in tasks for number in wanted)


def joined_shares(batches: Generator[Batch], num_wanted: int) -> Generator[Share]:
    """Yield a share of every `num_wanted` slices; closing it closes `batches`."""
    with closing(batches):
        while slices := list(islice(batches, num_wanted)):
            yield Share.of(slices)


class BatchSource(Protocol):
    """A source of batches, such as `tgflow.Plan`. `batch` must be thread-safe."""

    @property
    def gpu(self) -> Device | None:
        """The GPU that batches are made on; None: host memory."""
        ...

    def __len__(self) -> int: ...

    def batch(self, epoch: int, index: int) -> Batch:
        """Return batch `index` of `epoch`; for tasks of slices, also takes a slice's number."""
        ...

    def batches_on(self, gpu: Device, num_slots: int) -> MakeBatches:
        """Return a function that makes the same batches on a GPU, see `Plan.batches_on`."""
        ...


@described
class Loader:
    """Prefetches batches on threads and yields them in the order of their tasks.

    Tasks are pulled one at a time, and only when there is room for another batch, so an iterator
    of tasks may itself read a stream: while it blocks, prepared batches are delivered. With
    threads it is pulled from one of them, never from two at once.

    An error in preparing a batch, or in the iterator of tasks, is raised where that batch would
    have been yielded, and the threads end. Closing the iterator early (`close()`, or leaving the
    scope of a generator) ends them too; a thread blocked in the iterator of tasks ends when that
    returns, and is joined for at most a second.

    If a plan's edge or node features come through a cache with `policy="belady"`, `lookahead`
    batches are drafted before the first is delivered, so that future accesses are known; see
    `tgflow.plan.loader`. The batches are the same, whatever the caches, `lookahead` or threads.

    Batches for a GPU are made, or copied there in one transfer, on a separate stream, while the
    consumer's current stream works on earlier ones; it waits for a batch on the device. Frontiers
    are padded to a few sizes (see `tgflow.plan.padding`), for which the host must know how many
    rows a GPU has found: a batch requested before it is prepared makes the host wait. Tensors of
    a batch may be kept as long as any others, but see `captures`.

    Args:
        plan: Source of the batches.
        epoch: Epoch of the batches.
        indices: Their indices, in order, from any iterable; None is every batch that the plan has
            when iteration begins. See `of_tasks` for tasks of several epochs.
        num_threads: Threads that prepare; 0 prepares each batch on demand.
        lookahead: Batches that may be prepared or in preparation but not delivered, at least 1.
            "auto": 4; for `policy="belady"` as many as help, within a quarter of the caches' size.
        device: Device to deliver batches on: a GPU also for those made in host memory. None:
            where they are made.
        captures: Whether a GPU prepares batches of full size by replaying CUDA graphs. A batch is
            then valid until the next one is requested; work queued on the current stream by then
            may read it, later batches overwrite it.
        together: Consecutive batches that a GPU makes at once: with `captures` they are valid until
            one after them is requested.

    Raises:
        CudaError: If the GPU cannot be used; the message contains the cause.
        ValueError: If `num_threads` or `lookahead` is out of range, or batches are made on a GPU
            that is not `device`.

    Example:
        >>> [batch.t.tolist() for batch in tg.Loader(plan, num_threads=2)]
        [[10, 20], [30, 40]]
    """

    def __init__(
        self,
        plan: BatchSource,
        epoch: int = 0,
        indices: Iterable[int] | None = None,
        *,
        num_threads: int = 1,
        lookahead: Lookahead = "auto",
        device: torch.device | Device | None = None,
        captures: bool = False,
        together: int = 1,
    ) -> None:
        if num_threads < 0:
            raise ValueError(f"num_threads must be at least 0, got {num_threads}")
        if lookahead != "auto" and lookahead < 1:
            raise ValueError(f'lookahead must be at least 1 batch or "auto", got {lookahead}')
        self._plan = plan
        self._gpu = _delivery_gpu(plan, device)
        self._epoch, self._indices = epoch, indices
        self._tasks: Iterable[Task] | None = None
        self._num_threads = num_threads
        self._lookahead = lookahead
        self._captures, self._together = captures, together

    @classmethod
    def of_tasks(cls, plan: BatchSource, tasks: Iterable[Task], **options: Any) -> Loader:
        """Return a loader of any tasks, pulled lazily from an iterable; options as for `Loader`."""
        loader = cls(plan, **options)
        loader._tasks = tasks
        return loader

    def _facts(self) -> dict[str, object]:
        return {"plan": self._plan, "num_threads": self._num_threads, "lookahead": self._lookahead}

    def __iter__(self) -> Iterator[Batch]:
        plan, gpu, tasks = self._plan, self._gpu, self._tasks
        if tasks is None:
            indices = range(len(plan)) if self._indices is None else self._indices
            tasks = ((self._epoch, index) for index in indices)
        planned: Iterator[Batch] | None = None
        if isinstance(plan, Plan | ReusingPlan) and any(
            table.planned_cache is not None for table in feature_inputs(plan.graph)
        ):
            planned = planned_batches(
                plan, tasks, lookahead=self._lookahead, num_threads=self._num_threads
            )
        if gpu is None:
            return planned or self._made(partial(run_task, plan.batch), tasks)
        side = SideStream(gpu)
        if planned is not None:
            copies = PinnedCopies(gpu)
            copied = partial(side.make, lambda batch: LentBatches([copies.of_batch(batch)]))
            return _taken(side, self._made(copied, planned))
        ahead = max(1, self._ahead // self._together)
        make = partial(side.make, plan.batches_on(gpu, ahead + 1 if self._captures else 0))
        groups = batched(tasks, self._together)
        made = ordered_map(make, groups, num_threads=self._num_threads, lookahead=ahead)
        return _taken(side, made)

    @property
    def _ahead(self) -> int:
        return PREFETCH_BATCHES if self._lookahead == "auto" else self._lookahead

    def _made(self, make: Callable[[Item], T], items: Iterable[Item]) -> Generator[T]:
        return ordered_map(make, items, num_threads=self._num_threads, lookahead=self._ahead)


def _delivery_gpu(plan: BatchSource, device: torch.device | Device | None) -> Device | None:
    """Return the GPU to deliver batches on, None for host memory."""
    if device is None:
        return plan.gpu
    where = device if isinstance(device, torch.device) else device.device
    if plan.gpu is not None:
        if where not in (plan.gpu.device, torch.device(plan.gpu.device.type)):
            raise ValueError(f"batches are made on {plan.gpu.device}, got device {where}")
        return plan.gpu
    if isinstance(device, torch.device):
        return None if device.type == "cpu" else device_of(device)
    return device


def batched(items: Iterable[Item], num: int) -> Iterator[Sequence[Item]]:
    """Yield `num` consecutive items at once, pulled lazily; at the end there may be fewer."""
    items = iter(items)
    while group := [*islice(items, num)]:
        yield group


def _taken(side: SideStream, made: Generator[ReadyBatches]) -> Generator[Batch]:
    """Yield batches to the current stream; free those of a group when the next is requested."""
    try:
        with closing(made):
            for ready in made:
                yield from side.take(ready)
                side.free(ready)
    finally:
        side.end()


class BeladyPlanner:
    """Plans the contents of a cache of `num_slots` rows, batch by batch, from observed batches.

    Belady's replacement with bypass (IBM Systems Journal 5(2), 1966): after each batch the cache
    holds, among its contents and the batch's rows, those with the nearest next uses. Unlike in
    Ginex, contents carry over and the window advances batch by batch. Uses that were not observed
    count as later than all known ones; among those the row used last stays. O(1) per access,
    without the GIL; not thread-safe.
    """

    def __init__(self, num_slots: int, contents: Tensor | None = None) -> None:
        if contents is None:
            self._native = Belady(num_slots, None)
        else:
            self._native = Belady(num_slots, contents.cpu().contiguous())

    def __len__(self) -> int:
        """Return the number of observed batches that are not planned."""
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
        """Observe the ids that the next batch will gather."""
        self._native.observe(ids.contiguous())

    def plan(self) -> CacheSchedule:
        """Plan the next batch, and return its schedule; later plans assume that it is applied."""
        if len(self) == 0:
            raise IndexError("all observed batches are planned; observe the next one first")
        ids = torch.empty(self._native.next_size, dtype=torch.int64)
        hit = torch.empty(len(ids), dtype=torch.int32)
        admit = torch.empty_like(hit)
        self._native.plan_next(ids, hit, admit)
        return CacheSchedule(ids, hit, admit)

    def contents(self) -> Tensor:
        """Return the id in each slot after all planned batches, -1 for none."""
        ids = torch.empty(self._native.num_slots, dtype=torch.int64)
        self._native.contents(ids)
        return ids


Lookahead = int | Literal["auto"]
AnyPlan = Plan | ReusingPlan

PREFETCH_BATCHES = 4
"""Batches that may be complete and not yet taken."""
INITIAL_WINDOW = 16
"""Batches that "auto" observes before it plans the first, so that this one comes soon; then one
more with each planned batch."""
MAX_ACCESSES_PER_ROW = 32
"""Most accesses per cache row that "auto" observes ahead. Misses over those of full knowledge, of
TGN and TGAT on three real streams: up to 1.17 at 4, 1.11 at 8, 1.05 at 16 and 1.01 at 32."""
MIN_WINDOW_BYTES = 32 << 20
CONTENTS_BYTES = 68
"""Upper bound on a planner's bytes per slot for the contents."""


@dataclass(slots=True, eq=False)
class _Step:
    """A batch in preparation: drafted, then planned, then started."""

    task: Task
    pending: PendingBatch | None
    """None: too large to keep, made again later."""
    traces: list[Tensor]
    """Distinct ids that the batch will gather, per planned table."""
    schedules: list[CacheSchedule] = field(default_factory=list)
    """Schedule per planned table."""
    missed: list[PendingGather | None] = field(default_factory=list)
    """Pending reads of misses, per planned table."""
    rows: dict[Feature, Tensor] = field(default_factory=dict)
    """Rows of tables that are not planned."""


class _Window:
    """Batches that are drafted and not planned, and the planners that have observed them."""

    def __init__(self, caches: list[CachedTable], lookahead: Lookahead) -> None:
        self._planners = [BeladyPlanner(cache.capacity, cache.contents()) for cache in caches]
        self._capacities = [cache.capacity for cache in caches]
        self._room = max(
            MIN_WINDOW_BYTES + CONTENTS_BYTES * sum(self._capacities),
            sum(cache.cache_nbytes for cache in caches) // 4,
        )
        self._most_accesses = INT64_MAX
        self._is_auto = lookahead == "auto"
        self._most = INITIAL_WINDOW if lookahead == "auto" else lookahead
        self._waiting: deque[_Step] = deque()
        self._draft_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, step: _Step) -> None:
        """Let the planners observe a batch, and keep the draft if it fits."""
        for planner, ids in zip(self._planners, step.traces, strict=True):
            planner.observe(ids)
        held = sum(planner.nbytes for planner in self._planners)
        if self._most_accesses == INT64_MAX and held >= self._room:
            self._most_accesses = self._num_accesses()  # a planner never frees memory
        assert step.pending is not None
        size = step.pending.nbytes
        if self._draft_bytes + size <= MIN_WINDOW_BYTES:
            self._draft_bytes += size
        else:
            step.pending = None
        self._waiting.append(step)

    def is_enough(self) -> bool:
        """Return whether enough batches are observed to plan the first."""
        if len(self) >= self._most:
            return True
        if not self._is_auto or len(self) == 0:
            return False
        pairs = zip(self._planners, self._capacities, strict=True)
        return self._num_accesses() >= self._most_accesses or all(
            planner.num_accesses >= MAX_ACCESSES_PER_ROW * rows for planner, rows in pairs
        )

    def _num_accesses(self) -> int:
        return sum(planner.num_accesses for planner in self._planners)

    def plan(self) -> _Step:
        """Plan the first batch."""
        step = self._waiting.popleft()
        self._draft_bytes -= 0 if step.pending is None else step.pending.nbytes
        self._most += self._is_auto
        step.schedules = [planner.plan() for planner in self._planners]
        return step


def planned_batches(
    plan: AnyPlan, tasks: Iterable[Task], *, lookahead: Lookahead, num_threads: int
) -> Iterator[Batch]:
    """Yield the same batches as `plan.batch`, in the order of `tasks`, with fewer cache misses.

    Only one call may use a cache at a time; contents carry over to the next. "auto" observes
    16 batches ahead at first and one more with each delivered, up to 32 accesses per
    row of each cache, or a quarter of the caches' bytes for planning.
    """
    tables = [(table, table.planned_cache) for table in feature_inputs(plan.graph)]
    planned = [(table, cache) for table, cache in tables if cache is not None]
    others = [table for table, cache in tables if cache is None]

    def drafted(task: Task) -> _Step:
        draft = run_task(plan.pending, task)
        return _Step(task, draft, [table.trace(draft) for table, _ in planned])

    def steps() -> Generator[_Step]:
        """Plan the batches in order. A failed draft is raised after those before it."""
        known = _Window([cache for _, cache in planned], lookahead)
        failure: Exception | None = None
        with closing(drafts):
            try:
                for step in drafts:
                    known.add(step)
                    while known.is_enough():
                        yield known.plan()
            except Exception as error:
                failure = error
            while len(known) > 0:
                yield known.plan()
        if failure is not None:
            raise failure

    def begun(step: _Step) -> _Step:
        """Start reads that need no turn: unplanned tables, and misses of planned ones."""
        if step.pending is None:
            step.pending = run_task(plan.pending, step.task)
        try:
            for (table, cache), schedule in zip(planned, step.schedules, strict=True):
                with table.error_context():
                    step.missed.append(cache.start(schedule))
            step.rows = {table.name: table.gather(step.pending) for table in others}
        except Exception as error:
            raise batch_error(step.task, error) from error
        return step

    def batches() -> Generator[Batch]:
        """Gather the batches in order, as the caches' contents were planned."""
        with closing(started):
            for step in started:
                assert step.pending is not None
                moves = zip(planned, step.schedules, step.missed, strict=True)
                for (table, cache), schedule, missed in moves:
                    try:
                        with table.error_context():
                            ids = table.base_ids(step.pending)
                            step.rows[table.name] = cache.apply(schedule, ids, missed=missed)
                    except ScheduleMismatch as error:
                        where = f"{task_name(step.task)}, {table.name}"
                        raise ScheduleMismatch(f"{where}: {error}") from error
                    except Exception as error:
                        raise batch_error(step.task, error) from error
                yield step.pending.with_features(step.rows)

    drafts = ordered_map(drafted, tasks, num_threads=num_threads, lookahead=2 * num_threads)
    started = ordered_map(begun, steps(), num_threads=num_threads, lookahead=PREFETCH_BATCHES)
    if num_threads == 0:
        return batches()
    return ordered_map(lambda batch: batch, batches(), lookahead=PREFETCH_BATCHES)
