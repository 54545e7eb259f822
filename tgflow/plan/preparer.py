"""Who makes the batches that a plan describes: the host, or the GPU that its graph is on."""

from __future__ import annotations

from typing import Protocol

import torch

from tgflow.batch import Batch
from tgflow.cuda.device import Device
from tgflow.cuda.pinned import PinnedPool
from tgflow.plan.assembly import RootColumns, assembled
from tgflow.plan.inputs import feature_inputs
from tgflow.plan.pending import PendingBatch
from tgflow.plan.spec import PlanSpec, Roots
from tgflow.sampling import Frontier

_INT64_BYTES = 8


class Preparer(Protocol):
    """Makes batches: the same ones to the last bit, whoever does, but for padding.

    Safe to call from any number of threads. Raises what `tgflow.Plan.batch` does.
    """

    def pending(self, epoch: int, index: int) -> PendingBatch:
        """Return a batch before its features are read."""
        ...

    def prepare(self, epoch: int, index: int) -> Batch:
        """Return a batch."""
        ...


def preparer_of(spec: PlanSpec) -> Preparer:
    """Return what prepares batches where the graph of `spec` is."""
    gpu = spec.graph.gpu
    return HostPreparer(spec) if gpu is None else DevicePreparer(spec, gpu)


class HostPreparer:
    """Prepares batches in host memory, by the core."""

    def __init__(self, spec: PlanSpec) -> None:
        self._spec = spec

    def pending(self, epoch: int, index: int) -> PendingBatch:
        """Return a batch before its features are read."""
        roots = self._spec.draw(epoch, index)
        return assembled(self._spec, roots, RootColumns.on_host(roots))

    def prepare(self, epoch: int, index: int) -> Batch:
        """Return a batch in host memory."""
        return _with_features(self._spec, self.pending(epoch, index))


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

    def pending(self, epoch: int, index: int) -> PendingBatch:
        """Return a batch before its features are read. Does not synchronize."""
        roots = self._spec.draw(epoch, index)
        return assembled(self._spec, roots, self._copied(roots))

    def prepare(self, epoch: int, index: int) -> Batch:
        """Return a batch on the GPU. Waits for features on a disk or in host memory alone."""
        return _with_features(self._spec, self.pending(epoch, index))

    def _copied(self, roots: Roots) -> RootColumns:
        """Return the columns of the roots on the GPU, which come in one copy."""
        host, queries = roots.host, roots.queries
        assert queries.position is not None
        columns = [host.eid, host.t, queries.nodes, queries.t, queries.position]
        sizes = [len(column) for column in columns]
        with self._pinned.lend(_INT64_BYTES * sum(sizes)) as room:
            torch.cat(columns, out=room.view(torch.int64))
            there = self._gpu.copy_from_host(room).view(torch.int64)
        eid, t, *asked = torch.split(there, sizes)
        return RootColumns.of_copies(roots, eid, t, Frontier(*asked))


def _with_features(spec: PlanSpec, batch: PendingBatch) -> Batch:
    rows = {each.name: each.gather(batch) for each in feature_inputs(spec.graph)}
    return batch.with_features(rows)
