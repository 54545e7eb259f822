"""Who makes the batches that a plan describes: the host, or the GPU that its graph is on."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol

import torch

from tgflow.batch import Batch
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import Device
from tgflow.cuda.pinned import PinnedPool
from tgflow.plan.assembly import RootColumns, assemble_batch
from tgflow.plan.inputs import feature_inputs
from tgflow.plan.pending import PendingBatch
from tgflow.plan.root_layout import RootLayout
from tgflow.plan.spec import PlanSpec, Roots


class Preparer(Protocol):
    """Makes batches: the same ones to the last bit, whoever does, but for padding.

    Safe to call from any number of threads. Raises what `tgflow.Plan.batch` does.
    """

    def pending(self, roots: Roots) -> PendingBatch:
        """Return the batch of what was drawn before its features are read."""
        ...

    def columns(self, roots: Roots) -> RootColumns:
        """Return the columns of what was drawn, where batches are made."""
        ...

    def of_roots(self, roots: Roots) -> Batch:
        """Return the batch of what was drawn."""
        ...


def preparer_of(spec: PlanSpec) -> Preparer:
    """Return what prepares batches where the graph of `spec` is."""
    gpu = spec.graph.gpu
    return HostPreparer(spec) if gpu is None else DevicePreparer(spec, gpu)


class HostPreparer:
    """Prepares batches in host memory, by the core."""

    def __init__(self, spec: PlanSpec) -> None:
        self._spec = spec

    def pending(self, roots: Roots) -> PendingBatch:
        """Return the batch of what was drawn before its features are read."""
        return assemble_batch(self._spec, roots, self.columns(roots))

    def columns(self, roots: Roots) -> RootColumns:
        """Return the columns as they are."""
        return RootColumns.on_host(roots)

    def of_roots(self, roots: Roots) -> Batch:
        """Return the batch of what was drawn, in host memory."""
        return with_features(self._spec, self.pending(roots))


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


def with_features(spec: PlanSpec, batch: PendingBatch) -> Batch:
    """Return a batch with the rows of all tables, gathered where the batch is."""
    rows = {each.name: each.gather(batch) for each in feature_inputs(spec.graph)}
    return batch.with_features(rows)
