"""Batches that the host prepares in pinned slabs, and a GPU gets by one copy of each."""

from __future__ import annotations

import threading
from collections import deque

from torch import Tensor

from tgflow.batch import Batch
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import Device, StreamEvent
from tgflow.plan.copying import CopyingPreparer, gather_input
from tgflow.plan.inputs import feature_inputs
from tgflow.plan.slabs import SlabPreparer
from tgflow.plan.spec import PlanSpec
from tgflow.tables.row_view import RowView


class SlabCopies:
    """Prepares batches where a copy can fetch them: nothing of them moves on the host.

    A slab is not used again before its copy is done, and nobody waits for that: there is one more
    slab meanwhile. Any number of threads may ask.

    Args:
        spec: Of a graph in host memory.
        slabs: Of the same, in memory that `gpu` copies from.
        otherwise: Makes the batches whose features this one cannot: those on a disk, behind a cache
            of the host, or of selected rows.
        gpu: Where to.
        clock: Of what the stream does.
    """

    def __init__(
        self,
        spec: PlanSpec,
        slabs: SlabPreparer,
        otherwise: CopyingPreparer,
        gpu: Device,
        clock: WorkClock,
    ) -> None:
        self._spec, self._slabs, self._otherwise = spec, slabs, otherwise
        self._gpu, self._clock = gpu, clock
        inputs = feature_inputs(spec.graph)
        self._there = {table.name: table for table in inputs if table.is_in_reach_of_a_gpu}
        self._here = {table.name for table in inputs} - {*self._there}
        self._has_views = any(isinstance(table.table, RowView) for table in inputs)
        self._lock = threading.Lock()
        self._copied: deque[tuple[Tensor, StreamEvent]] = deque()
        """Slabs, and when their copies are done."""

    def batch(self, epoch: int, index: int) -> Batch:
        """Return a batch on the GPU, with padding up to a size; does not synchronize."""
        filled = None
        if not self._has_views:
            filled = self._slabs.fill(epoch, index, self._here, is_padded=True)
        if filled is None or filled.named & self._here:  # rows that are not in memory, or no longer
            return self._otherwise.of_roots(self._spec.draw(epoch, index))
        self._let_go()
        with self._clock.measuring():
            there = self._gpu.copy_from_host(filled.memory)
        with self._lock:
            self._copied.append((filled.memory, self._gpu.record_event()))
        pending = filled.pending(self._spec, there, None)
        with self._clock.measuring():
            rows = {name: gather_input(self._there[name], pending) for name in pending.ids}
            return pending.with_features(rows)

    def _let_go(self) -> None:
        """Let go of the slabs that were copied."""
        with self._lock:
            while self._copied and self._copied[0][1].query():
                self._copied.popleft()
