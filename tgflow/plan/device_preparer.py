"""Batches on a GPU: made by its kernels, by replaying CUDA graphs, or as copies of host batches."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, starmap
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from tgflow.base.keys import KeyDomain, derive_key
from tgflow.base.units import INT64_MAX
from tgflow.cuda.device import CapturedWork, Device, StreamEvent
from tgflow.cuda.pinned import PinnedPool
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch
from tgflow.graph.cache import cache_of
from tgflow.graph.sampling import Frontier
from tgflow.graph.tables import FeatureTable
from tgflow.graph.tables.row_view import RowView
from tgflow.plan._native import PARAMS, FilledSlab, Slab, SlabPool, padded_rows
from tgflow.plan.assemble import PendingBatch, assemble, feature_inputs
from tgflow.plan.draws import KEPT_SLABS, BatchPart, Drawing, Draws, Roots
from tgflow.plan.host_preparer import host_preparer
from tgflow.plan.in_order import Task, batch_error, run_task
from tgflow.plan.padding import BatchShape, Padding, cut, paddings, shape_of

if TYPE_CHECKING:
    from tgflow.graph.device import DeviceGraph


class LentBatches(NamedTuple):
    """Batches on a GPU that were made together, and how to give back what they were lent."""

    batches: Sequence[Batch]
    free: Callable[[], None] = lambda: None
    """Releases their memory after the current stream's work so far."""
    num_used: Tensor | None = None
    """`Batch.num_used` of one after the other, in pinned memory, once the batches are made; None:
    rows were not counted."""
    slot: Slot | None = None
    """The memory that they have until they are freed; None: their tensors own theirs."""
    drawn: Sequence[FilledSlab] = ()
    """Of a slot: what the batches were made of."""
    order: Sequence[int] | None = None
    """Places of the batches in the order of their tasks, if it is another one."""

    def cut(self) -> Sequence[Batch]:
        """Return them by task, without rows beyond `num_used`, rounded up, as views."""
        used = None if self.num_used is None else self.num_used.tolist()
        cuts = self.batches
        if self.slot is not None:
            cuts = self.slot.cut(used, self.drawn)
        elif used is not None:
            cuts = [_cut(*each) for each in _sized(cuts, used)]
        return cuts if self.order is None else [cuts[place] for place in self.order]


MakeBatches = Callable[[Sequence[Task]], LentBatches]
"""Makes batches (epoch, index), or slices or parts of them, together; thread-safe."""


def one_by_one(make: Callable[..., Batch]) -> MakeBatches:
    """Return the maker of batches that are each made by themselves."""
    return lambda tasks: LentBatches([run_task(make, task) for task in tasks])


@dataclass(frozen=True, slots=True, eq=False)
class WantedBatch:
    """A batch, slice or part to make, as `Draws.roots` takes it."""

    draws: Draws
    epoch: int
    index: int
    piece: int | BatchPart | None
    group: int = 0
    """Batches that are made together are made in the order of their groups."""
    watch: Callable[[], AbstractContextManager[None]] | None = None
    """Encloses what draws it, apart from others."""


_SLOT_SHARE = 64
"""Slots that are larger than this part of the GPU's memory are fewer than those asked for."""
_TWO_TO_63 = 1 << 63
_KEPT = {each.name for each in fields(Batch)} - {
    "epoch", "index", "num_new", "host", "num_fallbacks",
}  # fmt: skip
"""Fields of a slot's batches that are the same each time."""


@dataclass(slots=True, eq=False)
class Slot:
    """Captured preparation of batches of full size, in memory that later ones reuse."""

    node_x_end: int | None
    """`node_x_end` of the graph at capture, which determines the rows of node features."""
    drawn: Tensor
    """Copy of a slab of draws, uint8 on the GPU: input of each replay."""
    batches: list[Batch]
    """Output tensors of each replay, with the facts of the first."""
    num_used: Tensor | None
    """As `LentBatches.num_used`: written by each replay."""
    work: CapturedWork
    freed: StreamEvent | None = None
    """Point after which nothing reads the previous batches."""
    parts: dict[tuple[int, ...], Mapping[str, Any]] = field(default_factory=dict)
    """Fields of the results of `cut`, by the number of the batch and its size."""
    cuts: dict[tuple[int, ...], list[Mapping[str, Any]]] = field(default_factory=dict)
    """The same of all batches, by their sizes."""

    def cut(self, used: Sequence[int] | None, drawn: Sequence[FilledSlab]) -> list[Batch]:
        """Return the batches without rows beyond those in use, as `drawn`."""
        size = () if used is None else tuple(map(padded_rows, used))
        if size not in self.cuts:
            cuts = []
            for number, (batch, rows) in enumerate(_sized(self.batches, size)):
                key = number, *rows
                if key not in self.parts:
                    lent = _cut(batch, rows).as_lent()
                    self.parts[key] = {name: getattr(lent, name) for name in _KEPT}
                cuts.append(self.parts[key])
            self.cuts[size] = cuts
        return [
            Batch(
                epoch=of.epoch, index=of.index, num_new=of.at.num_new, host=of.host,
                num_fallbacks=of.at.num_fallbacks, **cut,
            )
            for cut, of in zip(self.cuts[size], drawn, strict=True)
        ]  # fmt: skip


Slots = deque[Slot]
"""Slots whose batches nothing uses."""


def _cut(batch: Batch, num_used: Sequence[int]) -> Batch:
    return cut(batch, BatchShape.of_used(num_used).rounded()) if num_used else batch


def _sized(batches: Sequence[Batch], used: Sequence[int]) -> Iterator[tuple[Batch, Sequence[int]]]:
    """Yield each batch with its part of `LentBatches.num_used`."""
    end = 0
    for batch in batches:
        begin, end = end, end + (0 if batch.num_used is None else len(batch.num_used))
        yield batch, used[begin:end]


class DevicePreparer:
    """Prepares batches on a GPU, by kernels on the current stream; the host draws their roots.

    Those of batches that are made together are drawn in one slab of pinned memory, and copied in
    one transfer without synchronizing: frontiers have their largest possible number of rows, unused
    ones being padding. If all are of full size, they are the replay of one CUDA graph in a slot,
    which outlives a pass, and the plans where others share it.
    """

    def __init__(self, graph: TemporalGraph, gpu: Device, slots: Slots) -> None:
        self._graph, self._gpu, self._copies = graph, gpu, PinnedCopies(gpu)
        self._pinned = PinnedSlabs(gpu)
        inputs = feature_inputs(graph)
        found = {id(each.table.base): each for each in inputs}.values()
        bases = [(cache_of(each.base_table), each.table.base) for each in found]
        tables = [base for _, base in bases if isinstance(base, FeatureTable)]
        self._caches = [cache for cache, _ in bases if cache is not None]
        views = [view for base in tables if (view := base.view) is not None]
        self._readers = [
            cast("DeviceGraph", graph.backend).readers,
            *(view.readers for view in views),
        ]
        self._is_captured = all(each.is_in_reach_of_a_gpu for each in inputs)
        self._free = slots

    def placed(self, draws: Draws, roots: Roots) -> Roots:
        """Return roots in host memory with columns on the GPU, copied in one transfer."""
        host, queries, negatives = roots.host, roots.queries, roots.negatives
        assert queries.position is not None
        limit = host.end if draws.sees_all_before else INT64_MAX
        since = draws.graph.log.native.since(draws.graph.since(host.begin))
        keys = [derive_key(roots.key, KeyDomain.HOP + hop) for hop in range(len(draws.fanouts))]
        signed = [key - 2 * _TWO_TO_63 if key >= _TWO_TO_63 else key for key in keys]
        params = [[limit, key, INT64_MAX, *since] for key in signed]
        begin, first = torch.tensor([host.begin]), torch.tensor(since[:1])
        hops = torch.tensor(params, dtype=torch.int64).view(-1, PARAMS)
        columns = [host.eid, host.t, queries.nodes, queries.t, queries.position, begin, first, hops]
        columns += [each for each in (roots.counts, negatives.log_q) if each is not None]
        others = host.columns().keys() - {"eid", "src", "dst", "t"}
        columns += [host.columns()[name] for name in others]
        there = self._copies.of(columns)
        eid, t, nodes, query_t, position, begin, first, hops = (
            there[id(column)] for column in columns[:8]
        )
        src, dst, negative_src, negative_dst = roots.split(nodes)
        log_q = None if negatives.log_q is None else there[id(negatives.log_q)]
        return replace(
            roots,
            columns={"eid": eid, "src": src, "dst": dst, "t": t}
            | {name: there[id(host.columns()[name])] for name in others},
            negatives=replace(negatives, src=negative_src, dst=negative_dst, log_q=log_q),
            queries=Frontier(nodes, query_t, position),
            counts=None if roots.counts is None else there[id(roots.counts)],
            begin=begin,
            since=None if draws.graph.horizon is None else first,
            params=hops,
        )

    def batches(self, num_slots: int, asked: Callable[..., WantedBatch]) -> MakeBatches:
        """Return a function that makes batches for one pass, in `num_slots` slots.

        All are captured before the first batches of full size: fewer, and at least one, where
        together they would take more than that number of 64ths of the GPU's memory.

        Args:
            num_slots: Number of slots; none are used where the host has to read a table.
            asked: What to make for a task.
        """
        lock, are_captured = threading.Lock(), False
        num_slots *= self._is_captured

        def make(tasks: Sequence[Task]) -> LentBatches:
            nonlocal are_captured, num_slots
            wanted = [*starmap(asked, tasks)]
            if wanted[0].piece is not None and isinstance(wanted[0].piece, BatchPart):
                return one_by_one(lambda *task: self._part(asked(*task)))(tasks)
            order = None
            if wanted[0].group != wanted[-1].group:  # groups take turns, and slots do not
                by_group = sorted(range(len(tasks)), key=lambda place: wanted[place].group)
                wanted, tasks = [wanted[i] for i in by_group], [tasks[i] for i in by_group]
                order = [by_group.index(place) for place in range(len(tasks))]
            slab, asking, drawn = Slab(self._pinned.pool), list[Drawing](), list[FilledSlab]()
            made = list[Any]()
            try:
                for each in wanted:
                    number = cast("int | None", each.piece)
                    if each.watch is None:
                        asking += (each.draws.request(each.epoch, each.index, number),)
                        continue
                    with each.watch():
                        drawn += (each.draws.fill(slab, each.epoch, each.index, number),)
                drawn += Draws.fill_all(slab, asking, made)
            except Exception as error:
                is_asked = len(asking) in (0, len(tasks))
                place = len((made or drawn) if is_asked else asking)
                # all are drawn where one of them could not be read
                raise batch_error(tasks[min(place, len(tasks) - 1)], error) from error
            is_full = num_slots > 0
            for each, filled in zip(wanted, drawn, strict=True):
                is_full &= each.piece is None and filled.at.num_events == each.draws.full_size
            if is_full and not are_captured:
                with lock:
                    if not are_captured:
                        # compiles kernels, and allocates memory
                        first = self._drawn(wanted, drawn)
                        num_slots = self._that_fit(num_slots, first.batches)
                        while len(self._free) < num_slots:
                            self._free.append(self._captured(wanted, drawn, first.num_used))
                        are_captured = True
            try:
                slot = self._free.popleft() if is_full else None
            except IndexError:  # all are in use
                slot = None
            if slot is None:
                return self._drawn(wanted, drawn)._replace(order=order)
            taken = self._replayed(wanted, drawn, slot)

            def free() -> None:
                taken.freed = self._gpu.record_event()
                self._free.append(taken)

            return LentBatches(taken.batches, free, taken.num_used, taken, drawn, order)

        return make

    def _that_fit(self, num_slots: int, batches: Sequence[Batch]) -> int:
        """Return how many slots of batches like these, at most `num_slots`, have room."""
        size = sum(tensor.nbytes for batch in batches for tensor in batch.tensors())
        total = self._gpu.total_bytes
        fitting = max(1, num_slots * total // (_SLOT_SHARE * max(size, 1)))
        if fitting >= num_slots:
            return num_slots
        warnings.warn(
            f"{fitting} of {num_slots} batches are prepared in memory that is kept, and the "
            f"others more slowly: each takes {size / 2**20:,.0f} MiB of {self._gpu.device}'s "
            f"{total / 2**20:,.0f} MiB; a smaller batch_size (--batch-size), or fewer negatives or "
            "neighbors, need less",
            RuntimeWarning,
            stacklevel=2,
        )
        return fitting

    def _batch(self, draws: Draws, roots: Roots) -> Batch:
        """Return the batch of placed roots; waits only for features that the host reads."""
        return assemble(draws, roots).gathered(self._graph)

    def _part(self, asked: WantedBatch) -> Batch:
        roots = asked.draws.roots(asked.epoch, asked.index, asked.piece)
        return self._batch(asked.draws, self.placed(asked.draws, roots))

    def _made(
        self, wanted: Sequence[WantedBatch], drawn: Sequence[FilledSlab], there: Tensor
    ) -> tuple[list[Batch], Tensor | None]:
        """Return the batches of a copied slab, and their `num_used` on the GPU."""
        pairs = zip(wanted, drawn, strict=True)
        batches = [self._batch(x.draws, x.draws.view(filled, there)) for x, filled in pairs]
        used = [each.num_used for each in batches if each.num_used is not None]
        return batches, torch.cat(used) if used else None

    def _drawn(self, wanted: Sequence[WantedBatch], drawn: Sequence[FilledSlab]) -> LentBatches:
        """Return batches in memory of their own."""
        batches, used = self._made(wanted, drawn, self._pinned.copy(drawn[-1].slab))
        on_host = self._room_for(used)
        if on_host is not None and used is not None:
            on_host.copy_(used, non_blocking=True)
        return LentBatches(batches, num_used=on_host)

    def _room_for(self, num_used: Tensor | None) -> Tensor | None:
        if num_used is None:
            return None
        return self._gpu.allocate_host(num_used.nbytes).view(num_used.dtype)

    def _replayed(
        self, wanted: Sequence[WantedBatch], drawn: Sequence[FilledSlab], slot: Slot
    ) -> Slot:
        """Return a slot that holds the drawn batches; waits only during a capture."""
        graph = self._graph
        if slot.freed is not None:
            self._gpu.wait_event(slot.freed)
        if slot.node_x_end != graph.node_x_end:
            slot = self._captured(wanted, drawn, slot.num_used)
        self._pinned.copy(drawn[-1].slab, out=slot.drawn)
        with ExitStack() as reading:  # replays of captured gathers are not tracked
            for cache in self._caches:
                reading.enter_context(cache.reading())
            reading.enter_context(self._readers[0].reading(*self._readers[1:]))
            slot.work.replay()
        return slot

    def _captured(
        self, wanted: Sequence[WantedBatch], drawn: Sequence[FilledSlab], num_used: Tensor | None
    ) -> Slot:
        """Capture a slot for such batches, whose `num_used` is like the given one."""
        gpu, size, on_host = self._gpu, len(drawn[-1].memory), self._room_for(num_used)
        there = torch.zeros(size, dtype=torch.uint8, device=gpu.device)
        made: list[Batch] = []

        def prepare() -> list[Tensor]:
            batches, used = self._made(wanted, drawn, there)
            made.extend(batches)
            if on_host is not None and used is not None:
                on_host.copy_(used, non_blocking=True)
            return [column for each in made for column in each.tensors()]

        work = gpu.capture(prepare)
        return Slot(self._graph.node_x_end, there, made, on_host, work)


class PinnedSlabs:
    """A pool of slabs of pinned memory, each unused again after its copy to a GPU is done."""

    def __init__(self, gpu: Device) -> None:
        self._gpu, self._lock = gpu, threading.Lock()
        self.pool = SlabPool(KEPT_SLABS, gpu.allocate_host)
        self._copied: deque[tuple[Tensor, StreamEvent]] = deque()

    def copy(self, slab: Slab, out: Tensor | None = None) -> Tensor:
        """Return a copy of a slab on the current stream; does not synchronize."""
        with self._lock:
            while self._copied and self._copied[0][1].query():
                del self._copied[0]
        memory = torch.frombuffer(slab, dtype=torch.uint8)  # keeps the slab alive
        there = self._gpu.copy_from_host(memory, out)
        self._copied += ((memory, self._gpu.record_event()),)
        return there


_ALIGNMENT = 256
"""Alignment of columns in bytes, as of torch's own allocations."""


class PinnedCopies:
    """Copies host columns to a GPU in one transfer on the current stream."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._pinned = PinnedPool(gpu)

    def of(
        self, columns: Sequence[Tensor], longer: Mapping[int, Padding] | None = None
    ) -> dict[int, Tensor]:
        """Return copies on the GPU by the `id` of each column, contiguous; does not synchronize."""
        longer = {} if longer is None else longer
        shapes = [
            (longer[id(column)].rows if id(column) in longer else len(column), *column.shape[1:])
            for column in columns
        ]
        sizes = [c.element_size() * prod(shape) for c, shape in zip(columns, shapes, strict=True)]
        *begins, end = 0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)

        def parts(piece: Tensor) -> list[Tensor]:
            places = zip(columns, begins, sizes, shapes, strict=True)
            return [
                piece[begin : begin + size].view(column.dtype).view(shape)
                for column, begin, size, shape in places
            ]

        with self._pinned.lend(end) as room:
            for column, part in zip(columns, parts(room), strict=True):
                # numpy copies on this thread, where torch would start more
                values = part.numpy()
                values[: len(column)] = column.numpy()
                if id(column) in longer:
                    values[len(column) :] = longer[id(column)].fill
            there = self._gpu.copy_from_host(room)
        return {id(column): part for column, part in zip(columns, parts(there), strict=True)}

    def of_batch(self, batch: Batch) -> Batch:
        """Return a padded copy of a batch; does not synchronize."""
        copies = self.of(batch.tensors(), paddings(batch, shape_of(batch).rounded()))
        return batch.map(lambda column: copies[id(column)])


class CopiedBatches:
    """Prepares batches in host memory and copies them to a GPU, on the current stream.

    Whole batches are prepared in slabs of pinned memory, which are reused after their copies are
    done. Slices, parts, and batches with features on a disk, behind a host cache or of
    selected rows, are first packed in pinned memory. Rows that the GPU can read it gathers itself.
    """

    def __init__(self, draws: Draws, gpu: Device, pending: Callable[..., PendingBatch]) -> None:
        self._draws, self._gpu, self._pending = draws, gpu, pending
        self._copies = PinnedCopies(gpu)
        inputs = feature_inputs(draws.graph)
        self._there = {each.name: each for each in inputs if each.is_in_reach_of_a_gpu}
        self._here = {each.name: each for each in inputs if not each.is_in_reach_of_a_gpu}
        has_views = any(isinstance(each.table, RowView) for each in inputs)
        self._pinned = PinnedSlabs(gpu)
        self._slabs = None if has_views else host_preparer(draws, self._pinned.pool)

    def make(self, epoch: int, index: int, *part: Any) -> Batch:
        """Return the padded batch on the GPU; waits for tables at most."""
        filled: FilledSlab | None = None
        if not part and self._slabs is not None:
            filled = self._slabs.fill(epoch, index, self._here, is_padded=True)
        if self._slabs is None or filled is None or filled.at.named & self._here.keys():
            return self.of_pending(self._pending(epoch, index, *part))
        there = self._pinned.copy(filled.slab)
        return self._completed(self._slabs.view(filled, there, is_here=False))

    def of_pending(self, pending: PendingBatch) -> Batch:
        """Return a host batch on the GPU; waits for features that the host gathers."""
        batch = pending.with_features({n: each.gather(pending) for n, each in self._here.items()})
        ids = {name: each.base_ids(pending) for name, each in self._there.items()}
        shape = replace(shape_of(batch), edges=len(pending.ids.get("edge_x", ()))).rounded()
        longer = paddings(batch, shape)
        for name, column in ids.items():
            longer[id(column)] = Padding(shape.edges if name == "edge_x" else shape.nodes, -1)
        own_row = [] if pending.own_row is None else [pending.own_row]
        copies = self._copies.of([*batch.tensors(), *ids.values(), *own_row], longer)
        copied = PendingBatch(
            batch.map(lambda column: copies[id(column)]),
            {name: copies[id(column)] for name, column in ids.items()},
            shape.edges,
            None if pending.own_row is None else copies[id(pending.own_row)],
        )
        return self._completed(copied)

    def _completed(self, pending: PendingBatch) -> Batch:
        rows = {n: self._there[n].gather_base(ids) for n, ids in pending.ids.items()}
        batch = pending.with_features(rows) if rows else pending.batch
        if not self._draws.for_gradients:
            return batch
        from tgflow.plan.slot_lists import with_slot_lists

        return with_slot_lists(batch)
