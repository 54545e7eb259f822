"""Batches on a GPU: made by its kernels, by replaying CUDA graphs, or as copies of host batches."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tgflow.base.keys import KeyDomain, derive_key
from tgflow.base.units import INT64_MAX
from tgflow.cuda.device import CapturedWork, Device, StreamEvent
from tgflow.cuda.pinned import PinnedPool
from tgflow.graph.batch import Batch
from tgflow.graph.cache import cache_of
from tgflow.graph.sampling import Frontier
from tgflow.graph.tables import FeatureTable
from tgflow.graph.tables.row_view import RowView
from tgflow.plan._native import PARAMS, FilledSlab, SlabPool, padded_rows
from tgflow.plan.assemble import PendingBatch, assemble, feature_inputs
from tgflow.plan.draws import KEPT_SLABS, BatchPart, Draws, Roots
from tgflow.plan.host_preparer import host_preparer
from tgflow.plan.padding import BatchShape, Padding, cut, paddings, shape_of


class LentBatch(NamedTuple):
    """A batch on a GPU, and how to give back the memory that it was lent."""

    batch: Batch
    free: Callable[[], None] = lambda: None
    """Releases its memory after the current stream's work so far."""
    cuts: dict[tuple[int, ...], Batch] | None = None
    """Of a slab, which is overwritten once the batch is freed: results of `cut` so far, by size.
    None: the batch's tensors own their memory."""

    def cut(self, num_used: Sequence[int]) -> Batch:
        """Return the batch without rows beyond `Batch.num_used`, rounded up, as views."""
        now, cuts = self.batch, self.cuts
        size = tuple(map(padded_rows, num_used))
        if cuts is None or size not in cuts:
            shorter = cut(now, BatchShape.of_used(num_used).rounded())
            if cuts is None:
                return shorter
            cuts[size] = shorter.as_lent()
        return replace(
            cuts[size],
            epoch=now.epoch,
            index=now.index,
            num_new=now.num_new,
            host=now.host,
            num_fallbacks=now.num_fallbacks,
        )


MakeBatch = Callable[..., LentBatch]
"""Makes batch (epoch, index), or a slice or part of it; thread-safe."""

_SLAB_SHARE = 64
"""Slabs that are larger than this part of the GPU's memory are fewer than those asked for."""
_TWO_TO_63 = 1 << 63


@dataclass(slots=True, eq=False)
class _Captured:
    """Captured preparation of batches of one shape, in memory that later batches reuse."""

    node_x_end: int | None
    """`node_x_end` of the graph at capture, which determines the rows of node features."""
    drawn: Tensor
    """Copy of a slab of draws, uint8 on the GPU: input of each replay."""
    batch: Batch
    """Output tensors of each replay."""
    work: CapturedWork
    cuts: dict[tuple[int, ...], Batch] = field(default_factory=dict)
    """As `LentBatch.cuts`."""
    freed: StreamEvent | None = None
    """Point after which nothing reads the previous batch."""


Slabs = deque[_Captured]
"""Slabs of batches that nothing uses."""


class DevicePreparer:
    """Prepares batches on a GPU, by kernels on the current stream; the host draws their roots.

    They are drawn in a slab of pinned memory, and copied in one transfer without synchronizing:
    frontiers have their largest possible number of rows, unused ones being padding. Batches of
    full size can be replays of CUDA graphs, whose slabs outlive a pass, and the plan where others
    share them.
    """

    def __init__(self, draws: Draws, gpu: Device, slabs: Slabs) -> None:
        self._draws, self._gpu, self._copies = draws, gpu, PinnedCopies(gpu)
        self._pinned = PinnedSlabs(gpu)
        found = {id(each.table.base): each for each in feature_inputs(draws.graph)}.values()
        bases = [(cache_of(each.base_table), each.table.base) for each in found]
        self._tables = [(c, x if isinstance(x, FeatureTable) else None) for c, x in bases]
        self._free = slabs

    def placed(self, roots: Roots) -> Roots:
        """Return roots in host memory with columns on the GPU, copied in one transfer."""
        draws, host, queries, negatives = self._draws, roots.host, roots.queries, roots.negatives
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
        there = self._copies.of(columns)
        eid, t, nodes, query_t, position, begin, first, hops = (
            there[id(column)] for column in columns[:8]
        )
        src, dst, negative_src, negative_dst = roots.split(nodes)
        log_q = None if negatives.log_q is None else there[id(negatives.log_q)]
        return replace(
            roots,
            columns={"eid": eid, "src": src, "dst": dst, "t": t},
            negatives=replace(negatives, src=negative_src, dst=negative_dst, log_q=log_q),
            queries=Frontier(nodes, query_t, position),
            counts=None if roots.counts is None else there[id(roots.counts)],
            begin=begin,
            since=None if draws.graph.horizon is None else first,
            params=hops,
        )

    def batches(self, num_slabs: int) -> MakeBatch:
        """Return a function that makes batches for one pass, with `num_slabs` slabs.

        All are captured before the first batch of full size: fewer, and at least one, where
        together they would take more than that number of 64ths of the GPU's memory.
        """
        draws, lock, num_used = self._draws, threading.Lock(), 0
        full_size = draws.full_size

        def make(epoch: int, index: int, piece: int | BatchPart | None = None) -> LentBatch:
            nonlocal num_used, num_slabs
            if piece is not None and isinstance(piece, BatchPart):
                return LentBatch(self._batch(self.placed(draws.roots(epoch, index, piece))))
            filled = draws.fill(self._pinned.pool, epoch, index, piece)
            is_full = piece is None and filled.at.num_events == full_size
            with lock:
                slab = None
                if is_full and num_used < num_slabs:
                    if num_used + len(self._free) < num_slabs:  # the first of all
                        # compiles kernels, and allocates memory
                        num_slabs = self._that_fit(num_slabs, self._drawn(filled))
                        while num_used + len(self._free) < num_slabs:
                            self._free.append(self._captured(filled))
                    slab = self._free.popleft()
                    num_used += 1
            if slab is None:
                return LentBatch(self._drawn(filled))
            replayed = self._replayed(filled, slab)

            def free() -> None:
                nonlocal num_used
                replayed.freed = self._gpu.record_event()
                with lock:
                    num_used -= 1
                    self._free.append(replayed)

            return LentBatch(replayed.batch, free, replayed.cuts)

        return make

    def _that_fit(self, num_slabs: int, batch: Batch) -> int:
        """Return how many slabs of batches like this one, at most `num_slabs`, have room."""
        size, total = sum(tensor.nbytes for tensor in batch.tensors()), self._gpu.total_bytes
        fitting = max(1, num_slabs * total // (_SLAB_SHARE * max(size, 1)))
        if fitting >= num_slabs:
            return num_slabs
        warnings.warn(
            f"{fitting} of {num_slabs} batches are prepared in memory that is kept, and the others "
            f"more slowly: each takes {size / 2**20:,.0f} MiB of {self._gpu.device}'s "
            f"{total / 2**20:,.0f} MiB; a smaller batch_size (--batch-size), or fewer negatives or "
            "neighbors, need less",
            RuntimeWarning,
            stacklevel=2,
        )
        return fitting

    def _batch(self, roots: Roots) -> Batch:
        """Return the batch of placed roots; waits only for features that the host reads."""
        return assemble(self._draws, roots).gathered(self._draws.graph)

    def _drawn(self, filled: FilledSlab) -> Batch:
        return self._batch(self._draws.view(filled, self._pinned.copy(filled.memory)))

    def _replayed(self, filled: FilledSlab, slab: _Captured) -> _Captured:
        """Return a slab that holds the drawn batch; waits only during a capture."""
        graph = self._draws.graph
        if slab.freed is not None:
            self._gpu.wait_event(slab.freed)
        if slab.node_x_end != graph.node_x_end:
            slab = self._captured(filled)
        with ExitStack() as reading:
            self._pinned.copy(filled.memory, out=slab.drawn)
            reading.enter_context(graph.backend.reading())
            for cache, base in self._tables:  # replays of captured gathers are not tracked
                if cache is not None:
                    reading.enter_context(cache.reading())
                if base is not None and (view := base.view) is not None:
                    reading.enter_context(view.readers.reading())
            slab.work.replay()
        slab.batch = replace(
            slab.batch, epoch=filled.epoch, index=filled.index, num_new=filled.at.num_new,
            host=filled.host, num_fallbacks=filled.at.num_fallbacks,
        )  # fmt: skip
        return slab

    def _captured(self, filled: FilledSlab) -> _Captured:
        draws = self._draws
        there = torch.zeros(len(filled.memory), dtype=torch.uint8, device=self._gpu.device)
        placed = draws.view(filled, there)
        made: list[Batch] = []

        def prepare() -> list[Tensor]:
            made.append(self._batch(placed))
            return made[-1].tensors()

        node_x_end, work = draws.graph.node_x_end, self._gpu.capture(prepare)
        return _Captured(node_x_end, there, made[0], work)


class PinnedSlabs:
    """A pool of slabs of pinned memory, each unused again after its copy to a GPU is done."""

    def __init__(self, gpu: Device) -> None:
        self._gpu, self._lock = gpu, threading.Lock()
        self.pool = SlabPool(KEPT_SLABS, gpu.allocate_host)
        self._copied: deque[tuple[Tensor, StreamEvent]] = deque()

    def copy(self, memory: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a copy of a slab on the current stream; does not synchronize."""
        with self._lock:
            while self._copied and self._copied[0][1].query():
                self._copied.popleft()
        there = self._gpu.copy_from_host(memory, out)
        self._copied.append((memory, self._gpu.record_event()))
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

    def make(self, epoch: int, index: int, *part: Any) -> LentBatch:
        """Return the padded batch on the GPU; waits for tables at most."""
        filled: FilledSlab | None = None
        if not part and self._slabs is not None:
            filled = self._slabs.fill(epoch, index, self._here, is_padded=True)
        if self._slabs is None or filled is None or filled.at.named & self._here.keys():
            return LentBatch(self.of_pending(self._pending(epoch, index, *part)))
        there = self._pinned.copy(filled.memory)
        return LentBatch(self._completed(self._slabs.view(filled, there, is_here=False)))

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
