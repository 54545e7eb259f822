"""Comparison of device batches with host batches: equal bit for bit but for padding."""

from __future__ import annotations

import torch
from torch import Tensor

from helpers.plan_reference import assert_same_batch
from tgflow.graph.batch import Batch
from tgflow.plan.padding import cut, shape_of


def assert_same_but_for_padding(padded: Batch, exact: Batch) -> None:
    """Fail unless `padded` is `exact` followed by padding, as `Batch` describes."""
    there, shape = padded.to("cpu"), shape_of(exact)
    assert_same_batch(cut(there, shape), exact)
    size = shape.nodes
    assert not there.nodes[size:].any()
    assert (there.position[size:] == exact.host.begin).all()
    assert there.node_x is None or not there.node_x[size:].any()
    for block, rows in zip(there.blocks, shape.targets, strict=True):
        assert not block.mask[rows:].any()
        assert (block.eid[rows:] == -1).all()
        for column in (block.target, block.neighbor, block.dt, block.edge_row):
            assert column is None or not column[rows:].any()


def assert_on(device: torch.device, batch: Batch) -> None:
    """Fail unless all tensors of a batch are on `device`, and its `host` is on the CPU."""
    parts = (batch, *batch.blocks)
    names = [(part, name) for part in parts for name in type(part).__dataclass_fields__]
    for part, name in names:
        column = getattr(part, name)
        assert not isinstance(column, Tensor) or column.device == device, name
    assert batch.host.eid.is_cpu
