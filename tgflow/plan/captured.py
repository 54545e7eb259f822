"""Batches that a GPU prepares by replays of captured graphs, in slabs that take turns."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import CapturedWork, Device, StreamEvent
from tgflow.cuda.pinned import PinnedPool
from tgflow.plan.assembly import assemble_batch
from tgflow.plan.inputs import feature_inputs
from tgflow.plan.preparer import DevicePreparer, with_features
from tgflow.plan.root_layout import RootLayout
from tgflow.plan.spec import PlanSpec, Roots

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
