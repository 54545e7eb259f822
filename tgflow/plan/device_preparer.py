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
from tgflow.graph.sampling import Frontier
from tgflow.graph.tables.row_view import RowView
from tgflow.plan._native import padded_rows
from tgflow.plan.assemble import PendingBatch, assemble, feature_inputs
from tgflow.plan.draws import Draws, Roots
from tgflow.plan.host_preparer import FilledSlab, host_preparer
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
_PARAMS = 5
"""Parameters of a hop: cut-off of all queries, key of its draws, number of queries in use."""
_TWO_TO_63 = 1 << 63


@dataclass(slots=True, eq=False)
class _Captured:
    """Captured preparation of batches of one shape, in memory that later batches reuse."""

    node_x_end: int | None
    """`node_x_end` of the graph at capture, which determines the rows of node features."""
    roots: Tensor
    """int64 on the GPU: input of each replay."""
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

    Roots are copied in one transfer from pinned memory without synchronizing: frontiers have
    their largest possible number of rows, unused ones being padding. Batches of full size can be
    replays of CUDA graphs, whose slabs outlive a pass, and the plan where others share them.
    """

    def __init__(self, draws: Draws, gpu: Device, slabs: Slabs) -> None:
        self._draws, self._gpu = draws, gpu
        self._pinned = PinnedPool(gpu)
        self._free = slabs

    def placed(self, roots: Roots) -> Roots:
        """Return the roots with columns on the GPU, copied in one transfer."""
        with self._pinned.lend(8 * sum(self._sizes(roots))) as room:
            self._pack(roots, room)
            return self._unpack(roots, self._gpu.copy_from_host(room).view(torch.int64))

    def _sizes(self, roots: Roots) -> list[int]:
        """Return the lengths of the columns of roots, concatenated as int64."""
        num, num_queries = len(roots.host.eid), len(roots.queries)
        num_params = _PARAMS * len(self._draws.fanouts)
        sizes = [0 if x is None else x.numel() for x in (roots.counts, roots.negatives.log_q)]
        has_horizon = self._draws.graph.horizon is not None
        return [num, num, *[num_queries] * 3, *sizes, 1, int(has_horizon), num_params]

    def _pack(self, roots: Roots, room: Tensor) -> None:
        """Write the columns of roots to host memory, uint8."""
        draws, host, queries = self._draws, roots.host, roots.queries
        assert queries.position is not None
        limit = host.end if draws.sees_all_before else INT64_MAX
        keys = [derive_key(roots.key, KeyDomain.HOP + hop) for hop in range(len(draws.fanouts))]
        signed = [key - 2 * _TWO_TO_63 if key >= _TWO_TO_63 else key for key in keys]
        since = draws.graph.log.native.since(draws.graph.since(host.begin))
        params = [word for key in signed for word in (limit, key, INT64_MAX, *since)]
        columns = [host.eid, host.t, queries.nodes, queries.t, queries.position]
        for each in (roots.counts, roots.negatives.log_q):
            if each is not None:
                columns.append(each.double().view(torch.int64).flatten())
        ticks = [] if draws.graph.horizon is None else since[:1]
        words = torch.tensor([host.begin, *ticks, *params])
        torch.cat([*columns, words], out=room.view(torch.int64))

    def _unpack(self, roots: Roots, words: Tensor) -> Roots:
        """Return `roots` with columns that are views of `words`, int64."""
        columns = torch.split(words, self._sizes(roots))
        eid, t, nodes, query_t, position, counts, log_q, begin, since, params = columns

        def floats(words: Tensor, like: Tensor | None) -> Tensor | None:
            return None if like is None else words.view(torch.float64).view(like.shape)

        src, dst, negative_src, negative_dst = roots.split(nodes)
        return replace(
            roots,
            columns={"eid": eid, "src": src, "dst": dst, "t": t},
            negatives=replace(
                roots.negatives,
                src=negative_src,
                dst=negative_dst,
                log_q=floats(log_q, roots.negatives.log_q),
            ),
            queries=Frontier(nodes, query_t, position),
            counts=floats(counts, roots.counts),
            begin=begin,
            since=since if len(since) else None,
            params=params.view(-1, _PARAMS),
        )

    def batches(self, num_slabs: int) -> MakeBatch:
        """Return a function that makes batches for one pass, with `num_slabs` slabs.

        All are captured before the first batch of full size: fewer, and at least one, where
        together they would take more than that number of 64ths of the GPU's memory.
        """
        draws, lock, num_used = self._draws, threading.Lock(), 0

        def make(*task: Any) -> LentBatch:
            nonlocal num_used, num_slabs
            roots = draws.roots(*task)
            is_full = len(task) == 2 and len(roots.host.eid) == draws.full_size
            with lock:
                slab = None
                if is_full and num_used < num_slabs:
                    if num_used + len(self._free) < num_slabs:  # the first of all
                        # compiles kernels, and allocates memory
                        num_slabs = self._that_fit(num_slabs, self._batch(roots))
                        while num_used + len(self._free) < num_slabs:
                            self._free.append(self._captured(roots))
                    slab = self._free.popleft()
                    num_used += 1
            if slab is None:
                return LentBatch(self._batch(roots))
            replayed = self._replayed(roots, slab)

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
        """Return the batch of drawn roots; waits only for features that the host reads."""
        return assemble(self._draws, self.placed(roots)).gathered(self._draws.graph)

    def _replayed(self, roots: Roots, slab: _Captured) -> _Captured:
        """Return a slab that holds the batch of drawn roots; waits only during a capture."""
        graph = self._draws.graph
        if slab.freed is not None:
            self._gpu.wait_event(slab.freed)
        if slab.node_x_end != graph.node_x_end:
            slab = self._captured(roots)
        tables = {id(each.table.base): each for each in feature_inputs(graph)}
        with self._pinned.lend(slab.roots.nbytes) as room:
            self._pack(roots, room)
            with ExitStack() as reading:
                self._gpu.copy_from_host(room, out=slab.roots.view(torch.uint8))
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
        draws, size = self._draws, sum(self._sizes(roots))
        there = torch.zeros(size, dtype=torch.int64, device=self._gpu.device)
        placed = self._unpack(roots, there)
        made: list[Batch] = []

        def prepare() -> list[Tensor]:
            made.append(assemble(draws, placed).gathered(draws.graph))
            return made[-1].tensors()

        node_x_end, work = draws.graph.node_x_end, self._gpu.capture(prepare)
        return _Captured(node_x_end, there, made[0], work)


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
        self._slabs = None if has_views else host_preparer(draws, gpu.allocate_host)
        self._lock = threading.Lock()
        self._copied: deque[tuple[Tensor, StreamEvent]] = deque()
        """Slabs, and the event that ends their copies."""

    def make(self, epoch: int, index: int, *part: Any) -> LentBatch:
        """Return the padded batch on the GPU; waits for tables at most."""
        filled: FilledSlab | None = None
        if not part and self._slabs is not None:
            filled = self._slabs.fill(epoch, index, self._here, is_padded=True)
        if self._slabs is None or filled is None or filled.at.named & self._here.keys():
            return LentBatch(self.of_pending(self._pending(epoch, index, *part)))
        with self._lock:
            while self._copied and self._copied[0][1].query():
                self._copied.popleft()
        there = self._gpu.copy_from_host(filled.memory)
        with self._lock:
            self._copied.append((filled.memory, self._gpu.record_event()))
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
