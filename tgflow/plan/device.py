"""Batches on a GPU: made by kernels, by replays of CUDA graphs, or copied from the host."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import CapturedWork, Device, StreamEvent
from tgflow.cuda.pinned import PinnedPool
from tgflow.keys import KeyDomain, derive_key
from tgflow.plan.assembly import Feature, PendingBatch, Roots, assemble, feature_inputs
from tgflow.plan.host import host_preparer
from tgflow.plan.padding import Padding, paddings, shape_of
from tgflow.sampling import Frontier
from tgflow.tables.row_view import RowView
from tgflow.units import INT64_MAX

if TYPE_CHECKING:
    from tgflow.plan.plan import Plan


class DeviceBatches:
    """Makes batches on a GPU for one pass. Any thread may make them, on its current stream."""

    def __init__(self, prepare: Callable[..., Batch]) -> None:
        self._prepare = prepare

    def make(self, epoch: int, index: int, *part: Any) -> Batch:
        """Return batch `index` of `epoch`, or a slice of it by its number."""
        return self._prepare(epoch, index, *part)

    def free(self, batch: Batch) -> None:
        """Let the memory of a batch be used again, behind the current stream's work so far."""

    def close(self) -> None:
        """End the pass: free what was made and not freed, behind the current stream's work."""


class BatchesByEpoch(DeviceBatches):
    """Batches of one epoch from one source, and of all others from another."""

    def __init__(self, epoch: int, of_epoch: DeviceBatches, of_others: DeviceBatches) -> None:
        self._epoch, self._of_epoch, self._of_others = epoch, of_epoch, of_others

    def make(self, epoch: int, index: int, *part: Any) -> Batch:
        """Return batch `index` of `epoch`, or a slice of it."""
        return self._of(epoch).make(epoch, index, *part)

    def free(self, batch: Batch) -> None:
        """Let the memory of a batch be used again."""
        self._of(batch.epoch).free(batch)

    def close(self) -> None:
        """End the pass."""
        self._of_epoch.close()
        self._of_others.close()

    def _of(self, epoch: int) -> DeviceBatches:
        return self._of_epoch if epoch == self._epoch else self._of_others


_PARAMS = 3
"""Of a hop: the cut-off of all queries, the key of its draws and how many queries are in use."""
_TWO_TO_63 = 1 << 63


class RootLayout:
    """Where the columns of roots are in int64 of `num_bytes`, for roots of the same sizes."""

    def __init__(self, plan: Plan, roots: Roots) -> None:
        self._plan = plan
        num, num_queries = len(roots.host.eid), len(roots.queries)
        num_params = _PARAMS * len(plan.fanouts)
        self._sizes = [num, num, *[num_queries] * 3, len(roots.counts), 1, num_params]
        self.num_bytes = 8 * sum(self._sizes)

    def pack(self, roots: Roots, room: Tensor) -> None:
        """Write the columns of roots to host memory, uint8."""
        plan, host, queries = self._plan, roots.host, roots.queries
        assert queries.position is not None
        limit = host.end if plan.sees_all_before else INT64_MAX
        keys = [derive_key(roots.key, KeyDomain.HOP + hop) for hop in range(len(plan.fanouts))]
        signed = [key - 2 * _TWO_TO_63 if key >= _TWO_TO_63 else key for key in keys]
        params = [word for key in signed for word in (limit, key, INT64_MAX)]
        columns = [host.eid, host.t, queries.nodes, queries.t, queries.position, roots.counts]
        words = torch.tensor([host.begin, *params])
        torch.cat([*columns, words], out=room.view(torch.int64))

    def unpack(self, roots: Roots, room: Tensor) -> Roots:
        """Return `roots` with columns in a piece of memory, uint8, as views of it."""
        words = torch.split(room.view(torch.int64), self._sizes)
        eid, t, nodes, query_t, position, counts, begin, params = words
        src, dst, negative_src, negative_dst = roots.split(nodes)
        return replace(
            roots,
            columns={"eid": eid, "src": src, "dst": dst, "t": t},
            negatives=replace(roots.negatives, src=negative_src, dst=negative_dst),
            queries=Frontier(nodes, query_t, position),
            counts=counts,
            begin=begin,
            params=params.view(-1, _PARAMS),
        )


_WARM_UPS = 3
"""Batches prepared without a capture first: what is compiled or allocated once is so by then."""


@dataclass(slots=True, eq=False)
class _Captured:
    """The preparation of batches of one shape, captured in memory that later batches reuse."""

    node_x_end: int | None
    """As the graph had it, whose rows of node features it decides."""
    layout: RootLayout
    roots: Tensor
    """uint8 on the GPU: what each replay reads."""
    batch: Batch
    """Whose tensors each replay writes."""
    work: CapturedWork
    freed: StreamEvent | None = None
    """From where on nothing reads the batch that was in it last."""


class DevicePreparer:
    """Prepares batches on a GPU, by kernels on the current stream; the host draws their roots.

    Roots go over in one copy from pinned memory, and nothing waits: frontiers have as many rows as
    they could come to, those not in use being padding. Batches of full size can be replays of CUDA
    graphs, whose slabs outlive a pass.
    """

    def __init__(self, plan: Plan, gpu: Device) -> None:
        self._plan, self._gpu = plan, gpu
        self._pinned = PinnedPool(gpu)
        self._free: deque[_Captured | None] = deque()
        self._num_warm = 0

    def placed(self, roots: Roots) -> Roots:
        """Return the roots with columns on the GPU, which come in one copy."""
        layout = RootLayout(self._plan, roots)
        with self._pinned.lend(layout.num_bytes) as room:
            layout.pack(roots, room)
            return layout.unpack(roots, self._gpu.copy_from_host(room))

    def batch(self, roots: Roots, clock: WorkClock | None = None) -> Batch:
        """Return the batch of what was drawn; waits only for features that the host reads."""
        graph = self._plan.graph
        with nullcontext() if clock is None else clock.measuring():
            pending = assemble(self._plan, self.placed(roots))
            if all(each.is_in_reach_of_a_gpu for each in feature_inputs(graph)):
                return pending.gathered(graph)
        return pending.gathered(graph)

    def is_warm(self, roots: Roots) -> bool:
        """Return whether a batch can be captured: it is of full size, and others came before."""
        if roots.slice is not None or len(roots.host.eid) != self._plan.full_size:
            return False
        self._num_warm += 1
        return self._num_warm > _WARM_UPS

    def take(self) -> _Captured | None:
        """Return a slab that is free; None: there is none."""
        try:
            return self._free.popleft()
        except IndexError:
            return None

    def replayed(self, roots: Roots, slab: _Captured | None, clock: WorkClock) -> _Captured:
        """Return a slab that holds the batch of what was drawn; waits only while it captures."""
        graph = self._plan.graph
        if slab is not None and slab.freed is not None:
            self._gpu.wait_event(slab.freed)
        if slab is None or slab.node_x_end != graph.node_x_end:
            slab = self._captured(roots)
        tables = {id(each.table.base): each for each in feature_inputs(graph)}
        with self._pinned.lend(slab.layout.num_bytes) as room:
            slab.layout.pack(roots, room)
            with clock.measuring(), ExitStack() as reading:
                self._gpu.copy_from_host(room, out=slab.roots)
                reading.enter_context(graph.backend.reading())
                for each in tables.values():
                    reading.enter_context(each.reading())
                slab.work.replay()
        slab.batch = replace(
            slab.batch,
            epoch=roots.epoch,
            index=roots.index,
            num_new=roots.num_new,
            host=roots.host,
            num_fallbacks=roots.negatives.num_fallbacks,
        )
        return slab

    def _captured(self, roots: Roots) -> _Captured:
        plan, layout = self._plan, RootLayout(self._plan, roots)
        there = torch.zeros(layout.num_bytes, dtype=torch.uint8, device=self._gpu.device)
        placed = layout.unpack(roots, there)
        made: list[Batch] = []

        def prepare() -> list[Tensor]:
            made.append(assemble(plan, placed).gathered(plan.graph))
            return made[-1].tensors()

        node_x_end, work = plan.graph.node_x_end, self._gpu.capture(prepare)
        return _Captured(node_x_end, layout, there, made[0], work)

    def give_back(self, slab: _Captured) -> None:
        """Use a slab again, behind the work of the current stream so far."""
        slab.freed = self._gpu.record_event()
        self._free.append(slab)


class CapturedBatches(DeviceBatches):
    """Batches of one pass, made in slabs; see `DeviceBatches`."""

    def __init__(
        self, preparer: DevicePreparer, plan: Plan, num_slabs: int, clock: WorkClock
    ) -> None:
        self._preparer, self._plan, self._most = preparer, plan, num_slabs
        self._clock = clock
        self._lock = threading.Lock()
        self._num_used = 0
        self._lent: dict[int, _Captured] = {}

    def make(self, epoch: int, index: int, *part: Any) -> Batch:
        """Return a batch; a slice is never in a slab. Waits only while it captures."""
        roots = self._plan.draw(epoch, index, *part)
        with self._lock:
            is_captured = self._num_used < self._most and self._preparer.is_warm(roots)
            self._num_used += is_captured
            slab = self._preparer.take() if is_captured else None
        if not is_captured:
            return self._preparer.batch(roots, self._clock)
        slab = self._preparer.replayed(roots, slab, self._clock)
        with self._lock:
            self._lent[id(slab.batch.eid)] = slab
        return slab.batch

    def free(self, batch: Batch) -> None:
        """Let the slab of a batch be used again, behind the current stream's work so far."""
        with self._lock:
            slab = self._lent.pop(id(batch.eid), None)
            self._num_used -= slab is not None
        if slab is not None:
            self._preparer.give_back(slab)

    def close(self) -> None:
        """Free what was made and not freed, behind the current stream's work so far."""
        with self._lock:
            slabs = [*self._lent.values()]
            self._lent.clear()
        for slab in slabs:
            self._preparer.give_back(slab)


_ALIGNMENT = 256
"""Of columns, in bytes: that of whatever torch allocates itself."""


class PinnedCopies:
    """Copies columns of the host to a GPU: one piece, by one copy on the current stream."""

    def __init__(self, gpu: Device, clock: WorkClock) -> None:
        self._gpu, self._clock = gpu, clock
        self._pinned = PinnedPool(gpu)

    def of(
        self, columns: Sequence[Tensor], longer: Mapping[int, Padding] | None = None
    ) -> dict[int, Tensor]:
        """Return copies on the GPU by the `id` of each column, contiguous; does not synchronize."""
        longer = {} if longer is None else longer
        places, size = _laid_out(columns, longer)
        with self._pinned.lend(size) as room:
            for column, place in zip(columns, places, strict=True):
                # numpy copies on this thread alone, where torch would start threads beside it
                part = place.part_of(room).numpy()
                part[: len(column)] = column.numpy()
                if id(column) in longer:
                    part[len(column) :] = longer[id(column)].fill
            with self._clock.measuring():
                there = self._gpu.copy_from_host(room)
        pairs = zip(columns, places, strict=True)
        return {id(column): place.part_of(there) for column, place in pairs}

    def of_batch(self, batch: Batch) -> Batch:
        """Return a copy of a batch, with padding up to a size; does not synchronize."""
        copies = self.of(batch.tensors(), paddings(batch, shape_of(batch).rounded()))
        return batch.map(lambda column: copies[id(column)])


class _Place(NamedTuple):
    """Where a column is in a piece of memory."""

    begin: int
    num_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def part_of(self, piece: Tensor) -> Tensor:
        """Return the column in `piece`, uint8."""
        part = piece[self.begin : self.begin + self.num_bytes]
        return part.view(self.dtype).view(self.shape)


def _laid_out(columns: Sequence[Tensor], longer: Mapping[int, Padding]) -> tuple[list[_Place], int]:
    """Return the place of each column, one behind the other, and how many bytes all take."""
    shapes = [
        (longer[id(column)].rows if id(column) in longer else len(column), *column.shape[1:])
        for column in columns
    ]
    bytes_ = [c.element_size() * prod(shape) for c, shape in zip(columns, shapes, strict=True)]
    begins = [0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in bytes_)]
    end = begins.pop()
    dtypes = [column.dtype for column in columns]
    return [*map(_Place, begins, bytes_, dtypes, shapes)], end


class CopiedBatches(DeviceBatches):
    """Prepares batches in host memory and copies them to a GPU, on the current stream.

    Whole batches are prepared in slabs of pinned memory, not used again before their copies are
    done. Slices, and batches with features on a disk, behind a cache of the host or of selected
    rows, are laid out in pinned memory first. What the GPU can read it gathers itself.
    """

    def __init__(self, plan: Plan, gpu: Device, clock: WorkClock) -> None:
        self._plan, self._gpu, self._clock = plan, gpu, clock
        self._copies = PinnedCopies(gpu, clock)
        inputs = feature_inputs(plan.graph)
        self._there = {each.name: each for each in inputs if each.is_in_reach_of_a_gpu}
        self._here = {each.name: each for each in inputs if not each.is_in_reach_of_a_gpu}
        has_views = any(isinstance(each.table, RowView) for each in inputs)
        self._slabs = None if has_views else host_preparer(plan, gpu.allocate_host)
        self._lock = threading.Lock()
        self._copied: deque[tuple[Tensor, StreamEvent]] = deque()
        """Slabs, and when their copies are done."""

    def make(self, epoch: int, index: int, *part: Any) -> Batch:
        """Return a batch on the GPU, with padding up to a size; waits for tables at most."""
        if part or self._slabs is None:
            return self.of_pending(self._plan.pending(epoch, index, *part))
        filled = self._slabs.fill(epoch, index, self._here, is_padded=True)
        if filled.at.named & self._here.keys():  # rows that are not in memory, or no longer
            return self.of_pending(assemble(self._plan, self._plan.draw(epoch, index)))
        with self._lock:
            while self._copied and self._copied[0][1].query():
                self._copied.popleft()
        with self._clock.measuring():
            there = self._gpu.copy_from_host(filled.memory)
        with self._lock:
            self._copied.append((filled.memory, self._gpu.record_event()))
        return self._completed(self._slabs.view(filled, there, is_here=False))

    def of_pending(self, pending: PendingBatch) -> Batch:
        """Return a batch of the host on the GPU; the host waits for features that it gathers."""
        batch = pending.with_features({n: each.gather(pending) for n, each in self._here.items()})
        ids = {name: each.base_ids(pending) for name, each in self._there.items()}
        own_row = [] if pending.own_row is None else [pending.own_row]
        longer, rows = _longer(pending, batch, ids)
        copies = self._copies.of([*batch.tensors(), *ids.values(), *own_row], longer)
        copied = PendingBatch(
            batch.map(lambda column: copies[id(column)]),
            {name: copies[id(column)] for name, column in ids.items()},
            rows,
            None if pending.own_row is None else copies[id(pending.own_row)],
        )
        return self._completed(copied)

    def _completed(self, pending: PendingBatch) -> Batch:
        if not pending.ids:
            return pending.batch
        with self._clock.measuring():
            rows = {n: self._there[n].gather_base(ids) for n, ids in pending.ids.items()}
            return pending.with_features(rows)


def _longer(
    pending: PendingBatch, batch: Batch, ids: Mapping[Feature, Tensor]
) -> tuple[dict[int, Padding], int]:
    """Return what columns get to have a size, and the rows of the edge table then."""
    edges = pending.ids.get("edge_x", ())
    shape = replace(shape_of(batch), edges=len(edges)).rounded()
    longer = paddings(batch, shape)
    for name, column in ids.items():
        longer[id(column)] = Padding(shape.edges if name == "edge_x" else shape.nodes, -1)
    return longer, shape.edges
