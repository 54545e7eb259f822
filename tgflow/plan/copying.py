"""Batches that the host prepares for a GPU: one copy each, and what the GPU reads itself.

They come in the sizes of `tgflow.plan.padding`, so that shapes recur and steps can be captured:
padding is written beside the rows in pinned memory, and goes over with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import Device
from tgflow.cuda.pinned import PinnedPool
from tgflow.plan.inputs import FeatureInput, feature_inputs
from tgflow.plan.padding import Padding, paddings, shape_of
from tgflow.plan.pending import Feature, PendingBatch
from tgflow.plan.preparer import HostPreparer
from tgflow.plan.spec import PlanSpec, Roots

_ALIGNMENT = 256
"""Of columns, in bytes: that of whatever torch allocates itself."""


class PinnedCopies:
    """Copies columns of the host to a GPU: one piece, by one copy on the current stream.

    Any number of threads may copy.

    Args:
        gpu: Where to.
        clock: Of what the stream does.
    """

    def __init__(self, gpu: Device, clock: WorkClock) -> None:
        self._gpu, self._clock = gpu, clock
        self._pinned = PinnedPool(gpu)

    def of(
        self, columns: Sequence[Tensor], longer: Mapping[int, Padding] | None = None
    ) -> dict[int, Tensor]:
        """Return copies on the GPU by the `id` of each column, contiguous; does not synchronize.

        Args:
            columns: In host memory.
            longer: By the `id` of a column, what it gets behind its rows.
        """
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


class CopyingPreparer:
    """Prepares batches in host memory and copies them to a GPU, on the current stream.

    Features that the GPU can read where they are it gathers itself, by the ids that the host found;
    all others are gathered by the host.

    Args:
        spec: Of a graph in host memory.
        gpu: Where to.
        clock: Of what the stream does.
    """

    def __init__(self, spec: PlanSpec, gpu: Device, clock: WorkClock) -> None:
        self._host, self._clock = HostPreparer(spec), clock
        self._copies = PinnedCopies(gpu, clock)
        inputs = feature_inputs(spec.graph)
        self._there = [table for table in inputs if table.is_in_reach_of_a_gpu]
        self._here = [table for table in inputs if not table.is_in_reach_of_a_gpu]

    def of_roots(self, roots: Roots) -> Batch:
        """Return the batch of what was drawn, on the GPU.

        The host waits for features that it gathers, and nothing else.

        Raises:
            OSError: As `tgflow.Plan.batch`, as all errors.
        """
        return self.of_pending(self._host.pending(roots))

    def of_pending(self, pending: PendingBatch) -> Batch:
        """Return a batch of the host on the GPU, as `of_roots`."""
        return self._completed(self._copied(pending))

    def _copied(self, pending: PendingBatch) -> PendingBatch:
        """Return the batch on the GPU, with the features that the host gathers."""
        batch = pending.with_features({each.name: each.gather(pending) for each in self._here})
        ids = {each.name: each.base_ids(pending) for each in self._there}
        own_row = [] if pending.own_row is None else [pending.own_row]
        longer, rows = _longer(pending, batch, ids)
        copies = self._copies.of([*batch.tensors(), *ids.values(), *own_row], longer)
        return replace(
            pending,
            batch=batch.map(lambda column: copies[id(column)]),
            ids={name: copies[id(column)] for name, column in ids.items()},
            num_in_blocks=rows,
            own_row=None if pending.own_row is None else copies[id(pending.own_row)],
        )

    def _completed(self, pending: PendingBatch) -> Batch:
        if not self._there:
            return pending.batch
        with self._clock.measuring():
            rows = {each.name: gather_input(each, pending) for each in self._there}
            return pending.with_features(rows)


def _longer(
    pending: PendingBatch, batch: Batch, ids: Mapping[Feature, Tensor]
) -> tuple[dict[int, Padding], int]:
    """Return what columns get to have a size, and the rows of the edge table then.

    Args:
        pending: As the host made it.
        batch: The same, with the features that the host gathers.
        ids: Of the tables that the GPU gathers from.
    """
    edges = pending.ids.get("edge_x", ())
    shape = replace(shape_of(batch), edges=len(edges)).rounded()
    longer = paddings(batch, shape)
    for name, column in ids.items():
        rows = shape.edges if name == "edge_x" else shape.nodes
        longer[id(column)] = Padding(rows, -1)
    return longer, shape.edges


def gather_input(table: FeatureInput, pending: PendingBatch) -> Tensor:
    """Return the rows of `base_ids`, on the device of these."""
    with table.error_context():
        return table.base_table.gather(pending.ids[table.name])
