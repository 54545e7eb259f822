"""Batches that a GPU prepares: by kernels on the current stream, or by replays of CUDA graphs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import CapturedWork, Device, StreamEvent
from tgflow.cuda.pinned import PinnedPool
from tgflow.keys import KeyDomain, derive_key
from tgflow.plan.assembly import RootColumns, assemble_batch, with_features
from tgflow.plan.pending import PendingBatch, feature_inputs
from tgflow.plan.spec import PlanSpec, Roots, for_each_negative
from tgflow.sampling import Frontier
from tgflow.units import INT64_MAX


class DeviceBatches(Protocol):
    """Makes batches on a GPU for one pass. Any thread may make them, on its current stream."""

    def make(self, epoch: int, index: int, number: int | None = None) -> Batch:
        """Return batch `index` of `epoch`, or slice `number` of it."""
        ...

    def free(self, batch: Batch) -> None:
        """Let the memory of a batch be used again, behind the current stream's work so far."""
        ...

    def close(self) -> None:
        """End the pass: free what was made and not freed, behind the current stream's work."""
        ...


@dataclass(frozen=True)
class OwnedBatches:
    """Batches whose memory is theirs, as long as anybody has them."""

    prepare: Callable[..., Batch]
    """Takes a `tgflow.plan.in_order.Task`, spread out."""

    def make(self, epoch: int, index: int, number: int | None = None) -> Batch:
        """Return batch `index` of `epoch`, or slice `number` of it."""
        return self.prepare(epoch, index) if number is None else self.prepare(epoch, index, number)

    def free(self, batch: Batch) -> None:
        """Leave that to whoever lets go of it."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class BatchesByEpoch:
    """Batches of one epoch from one source, and of all others from another."""

    epoch: int
    of_epoch: DeviceBatches
    of_others: DeviceBatches

    def make(self, epoch: int, index: int, number: int | None = None) -> Batch:
        """Return batch `index` of `epoch`, or slice `number` of it."""
        return self._of(epoch).make(epoch, index, number)

    def free(self, batch: Batch) -> None:
        """Let the memory of a batch be used again."""
        self._of(batch.epoch).free(batch)

    def close(self) -> None:
        """End the pass."""
        self.of_epoch.close()
        self.of_others.close()

    def _of(self, epoch: int) -> DeviceBatches:
        return self.of_epoch if epoch == self.epoch else self.of_others


_PARAMS = 3
"""Of a hop: the cut-off of all queries, the key of its draws and how many queries are in use."""
_TWO_TO_63 = 1 << 63


class RootLayout:
    """Where the columns of roots are in int64 of `num_bytes`, for plans like one and sizes alike.

    What changes from batch to batch is all in it, so that work on it can be captured and replayed.

    Args:
        spec: The plan.
        roots: As many events and negatives as all that are packed.
    """

    def __init__(self, spec: PlanSpec, roots: Roots) -> None:
        self._spec = spec
        num, num_queries = len(roots.host.eid), len(roots.queries)
        num_params = _PARAMS * len(spec.fanouts)
        self._sizes = [num, num, *[num_queries] * 3, len(roots.counts), 1, num_params]
        self.num_bytes = 8 * sum(self._sizes)

    def pack(self, roots: Roots, room: Tensor) -> None:
        """Write the columns of roots to host memory, int64."""
        host, queries = roots.host, roots.queries
        assert queries.position is not None
        words = torch.tensor([host.begin, *self._params(roots)])
        columns = [host.eid, host.t, queries.nodes, queries.t, queries.position]
        torch.cat([*columns, roots.counts, words], out=room)

    def _params(self, roots: Roots) -> list[int]:
        """Return what the samplers of all hops read, one after the other."""
        limit = roots.host.end if self._spec.sees_all_before else INT64_MAX
        keys = [derive_key(roots.key, KeyDomain.HOP + h) for h in range(len(self._spec.fanouts))]
        signed = [key - 2 * _TWO_TO_63 if key >= _TWO_TO_63 else key for key in keys]
        return [word for key in signed for word in (limit, key, INT64_MAX)]

    def columns(self, roots: Roots, room: Tensor) -> RootColumns:
        """Return the columns in a piece of memory, as views of it.

        Args:
            roots: For their sizes alone.
            room: int64: packed, or a copy of what was.
        """
        eid, t, nodes, query_t, position, counts, begin, params = torch.split(room, self._sizes)
        src, dst, rest = roots.split(nodes)
        own = for_each_negative(src, rest.shape[2])
        return RootColumns(
            eid=eid,
            src=src,
            dst=dst,
            t=t,
            negative_src=own if roots.negatives.own_sources else rest[1],
            negative_dst=rest[0],
            queries=Frontier(nodes, query_t, position),
            begin=begin,
            counts=counts,
            params=params.view(-1, _PARAMS),
        )


class DevicePreparer:
    """Prepares batches on a GPU, by kernels on the current stream; the host draws their roots.

    The roots of a batch go over in one copy from pinned memory, and nothing waits: frontiers have
    as many rows as they could come to, those not in use being padding.

    Args:
        spec: Of a graph that is on `gpu`.
        gpu: The device.
    """

    def __init__(self, spec: PlanSpec, gpu: Device) -> None:
        self._spec, self._gpu = spec, gpu
        self._pinned = PinnedPool(gpu)

    def pending(self, roots: Roots) -> PendingBatch:
        """Return the batch of what was drawn before its features are read; does not synchronize."""
        return assemble_batch(self._spec, roots, self.columns(roots))

    def of_roots(self, roots: Roots, clock: WorkClock | None = None) -> Batch:
        """Return the batch of what was drawn; waits for features on a disk or in host memory alone.

        Args:
            roots: What was drawn.
            clock: Of what the stream does, but for the time in which the host reads tables.
        """
        measuring = nullcontext if clock is None else clock.measuring
        tables = feature_inputs(self._spec.graph)
        with measuring():
            pending = self.pending(roots)
            if all(each.is_in_reach_of_a_gpu for each in tables):
                return with_features(self._spec, pending)
        return with_features(self._spec, pending)

    def columns(self, roots: Roots) -> RootColumns:
        """Return the columns of the roots on the GPU, which come in one copy."""
        layout = RootLayout(self._spec, roots)
        with self._pinned.lend(layout.num_bytes) as room:
            layout.pack(roots, room.view(torch.int64))
            there = self._gpu.copy_from_host(room).view(torch.int64)
        return layout.columns(roots, there)


_WARM_UPS = 3
"""Batches prepared without a capture first: what is compiled or allocated once is so by then."""


@dataclass(slots=True, eq=False)
class _Captured:
    """The preparation of batches of one shape, captured."""

    node_x_end: int | None
    """As the graph had it, whose rows of node features it decides."""
    layout: RootLayout
    roots: Tensor
    """uint8 on the GPU: what each replay reads."""
    batch: Batch
    """Whose tensors each replay writes."""
    work: CapturedWork


@dataclass(slots=True, eq=False)
class _Slab:
    """Memory for a batch that many have in turn."""

    captured: _Captured | None = None
    freed: StreamEvent | None = None
    """From where on nothing reads the batch that was in it last."""


class CapturedPreparer:
    """Prepares batches of full size by CUDA graphs, one a slab, which outlive a pass.

    Args:
        spec: Of a graph that is on `gpu`, with tables that kernels read.
        gpu: The device.
    """

    def __init__(self, spec: PlanSpec, gpu: Device) -> None:
        self._spec, self._gpu = spec, gpu
        self._eager = DevicePreparer(spec, gpu)
        self._pinned = PinnedPool(gpu)
        tables = {id(each.table.base): each for each in feature_inputs(spec.graph)}
        self._read = [spec.graph.backend.reading, *(each.reading for each in tables.values())]
        self._lock = threading.Lock()
        self._free: deque[_Slab] = deque()
        self._num_warm = 0

    def take(self, roots: Roots) -> _Slab | None:
        """Return a slab for a batch of full size, once others have warmed up; else None."""
        if roots.slice is not None or len(roots.host.eid) != self._spec.full_size:
            return None
        with self._lock:
            self._num_warm += 1
            if self._num_warm <= _WARM_UPS:
                return None
            return self._free.popleft() if self._free else _Slab()

    def give_back(self, slab: _Slab) -> None:
        """Use a slab again, behind the work of the current stream so far."""
        slab.freed = self._gpu.record_event()
        with self._lock:
            self._free.append(slab)

    def prepare(self, roots: Roots, slab: _Slab | None, clock: WorkClock) -> Batch:
        """Return the batch of what was drawn, in a slab or in memory of its own.

        Does not synchronize, but while it captures.

        Args:
            roots: What was drawn.
            slab: Of `take`.
            clock: Of what the stream does.
        """
        if slab is None:
            return self._eager.of_roots(roots, clock)
        if slab.freed is not None:
            self._gpu.wait_event(slab.freed)
        captured = slab.captured = self._captured(slab.captured, roots)
        layout = captured.layout
        with self._pinned.lend(layout.num_bytes) as room:
            layout.pack(roots, room.view(torch.int64))
            with clock.measuring(), ExitStack() as reading:
                self._gpu.copy_from_host(room, out=captured.roots)
                for part in self._read:
                    reading.enter_context(part())
                captured.work.replay()
        return _renamed(captured.batch, roots)

    def _captured(self, captured: _Captured | None, roots: Roots) -> _Captured:
        """Return what was captured if it still serves, or capture it."""
        node_x_end = self._spec.graph.node_x_end
        if captured is not None and captured.node_x_end == node_x_end:
            return captured
        layout = RootLayout(self._spec, roots)
        there = torch.zeros(layout.num_bytes, dtype=torch.uint8, device=self._gpu.device)
        columns = layout.columns(roots, there.view(torch.int64))
        made: list[Batch] = []

        def prepare() -> list[Tensor]:
            made.append(with_features(self._spec, assemble_batch(self._spec, roots, columns)))
            return made[-1].tensors()

        work = self._gpu.capture(prepare)
        return _Captured(node_x_end, layout, there, made[0], work)


class CapturedBatches:
    """Batches of one pass, made in slabs; see `DeviceBatches`.

    A batch is there until `free` is called with it: its tensors are those of a later one then.

    Args:
        preparer: Whose slabs.
        spec: What batches are.
        num_slabs: How many batches may be in slabs at once; more have memory of their own.
        clock: Of what the stream does.
    """

    def __init__(
        self, preparer: CapturedPreparer, spec: PlanSpec, num_slabs: int, clock: WorkClock
    ) -> None:
        self._preparer, self._spec, self._most = preparer, spec, num_slabs
        self._clock = clock
        self._lock = threading.Lock()
        self._num_used = 0
        self._lent: dict[int, _Slab] = {}

    def make(self, epoch: int, index: int, number: int | None = None) -> Batch:
        """Return batch `index` of `epoch`, or slice `number` of it, which is never in a slab.

        Does not synchronize, but while it captures.
        """
        roots = self._spec.draw(epoch, index, number)
        slab = self._take(roots)
        batch = self._preparer.prepare(roots, slab, self._clock)
        if slab is not None:
            with self._lock:
                self._lent[id(batch.eid)] = slab
        return batch

    def _take(self, roots: Roots) -> _Slab | None:
        with self._lock:
            slab = self._preparer.take(roots) if self._num_used < self._most else None
            self._num_used += slab is not None
            return slab

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


def _renamed(batch: Batch, roots: Roots) -> Batch:
    """Return the batch of other roots, whose tensors are the same ones."""
    host = roots.host
    return replace(
        batch,
        epoch=roots.epoch,
        index=roots.index,
        num_new=roots.num_new,
        host=host,
        num_fallbacks=roots.negatives.num_fallbacks,
    )
