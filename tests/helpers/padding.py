"""Batches padded as `tgflow.plan.padding` defines."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow.graph.batch import Batch
from tgflow.plan.padding import BatchShape, paddings


def pad(batch: Batch, shape: BatchShape) -> Batch:
    """Return `batch` padded to `shape`; existing rows are unchanged."""
    found = paddings(batch, shape)

    def longer(column: Tensor) -> Tensor:
        if id(column) not in found:
            return column
        rows, fill = found[id(column)]
        rest = column.new_full((rows - len(column), *column.shape[1:]), fill)
        return torch.cat([column, rest])

    return batch.map(longer)
