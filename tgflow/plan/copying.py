"""Batches that the host prepares for a GPU: one copy each, and what the GPU reads itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from torch import Tensor

from tgflow.batch import Batch
from tgflow.cuda.device import Device
from tgflow.cuda.pinned import PinnedPool
from tgflow.plan.inputs import FeatureInput, feature_inputs
from tgflow.plan.pending import PendingBatch
from tgflow.plan.preparer import HostPreparer
from tgflow.plan.spec import PlanSpec

_ALIGNMENT = 256
"""Of columns, in bytes: that of whatever torch allocates itself."""


class PinnedCopies:
    """Copies columns of the host to a GPU: one piece, by one copy on the current stream.

    Any number of threads may copy.

    Args:
        gpu: Where to.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._pinned = PinnedPool(gpu)

    def of(self, columns: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return copies on the GPU by the `id` of each column, contiguous; does not synchronize."""
        sizes = [-(-column.nbytes // _ALIGNMENT) * _ALIGNMENT for column in columns]
        begins = [0, *accumulate(sizes)]
        with self._pinned.lend(begins.pop()) as room:
            for column, begin in zip(columns, begins, strict=True):
                # numpy copies on this thread alone, where torch would start threads beside it
                _part(room, column, begin).numpy()[...] = column.numpy()
            there = self._gpu.copy_from_host(room)
        places = zip(columns, begins, strict=True)
        return {id(column): _part(there, column, begin) for column, begin in places}

    def of_batch(self, batch: Batch) -> Batch:
        """Return a copy of a batch; does not synchronize."""
        copies = self.of(batch.tensors())
        return batch.map(lambda column: copies[id(column)])


def _part(piece: Tensor, like: Tensor, begin: int) -> Tensor:
    """Return the part of `piece`, uint8, that holds a tensor like `like`."""
    part = piece[begin : begin + like.numel() * like.element_size()]
    return part.view(like.dtype).view(like.shape)


class CopyingPreparer:
    """Prepares batches in host memory and copies them to a GPU, on the current stream.

    Features that the GPU can read where they are it gathers itself, by the ids that the host found;
    all others are gathered by the host.

    Args:
        spec: Of a graph in host memory.
        gpu: Where to.
    """

    def __init__(self, spec: PlanSpec, gpu: Device) -> None:
        self._host = HostPreparer(spec)
        self._copies = PinnedCopies(gpu)
        inputs = feature_inputs(spec.graph)
        self._there = [table for table in inputs if table.is_in_reach_of_a_gpu]
        self._here = [table for table in inputs if not table.is_in_reach_of_a_gpu]

    def prepare(self, epoch: int, index: int) -> Batch:
        """Return a batch on the GPU. The host waits for features that it gathers, and nothing else.

        Raises:
            IndexError: As `tgflow.Plan.batch`, as all errors.
        """
        return self._completed(self._copied(self._host.pending(epoch, index)))

    def _copied(self, pending: PendingBatch) -> PendingBatch:
        """Return the batch on the GPU, with the features that the host gathers."""
        batch = pending.with_features({each.name: each.gather(pending) for each in self._here})
        ids = {each.name: each.base_ids(pending) for each in self._there}
        own_row = [] if pending.own_row is None else [pending.own_row]
        copies = self._copies.of([*batch.tensors(), *ids.values(), *own_row])
        return replace(
            pending,
            batch=batch.map(lambda column: copies[id(column)]),
            ids={name: copies[id(column)] for name, column in ids.items()},
            own_row=None if pending.own_row is None else copies[id(pending.own_row)],
        )

    def _completed(self, pending: PendingBatch) -> Batch:
        return pending.with_features({each.name: _gathered(each, pending) for each in self._there})


def _gathered(table: FeatureInput, pending: PendingBatch) -> Tensor:
    """Return the rows of `base_ids`, on the device of these."""
    with table.error_context():
        return table.base_table.gather(pending.ids[table.name])
