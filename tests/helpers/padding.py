"""Batches of fixed shapes: further rows that nothing refers to, as `Batch` describes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tgflow.batch import Batch, Block


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How many rows the parts of a batch have, below its events."""

    targets: tuple[int, ...]
    """Of each block."""
    nodes: int
    """Of the lowest frontier."""
    edges: int
    """Of the edge table; 0 without one."""


def shape_of(batch: Batch) -> BatchShape:
    """Return the shape of a batch."""
    table = batch.blocks[0].edge_table if batch.blocks else None
    targets = tuple(len(block.target) for block in batch.blocks)
    return BatchShape(targets, len(batch.nodes), 0 if table is None else len(table))


def pad(batch: Batch, shape: BatchShape) -> Batch:
    """Return `batch` with padding up to `shape`; what it has is not changed. Does not synchronize.

    Raises:
        ValueError: If the batch has more rows than `shape`, or another number of blocks.
    """
    _check_fits(shape_of(batch), shape)
    table = batch.blocks[0].edge_table if batch.blocks else None
    if table is not None:
        table = _longer(table, shape.edges)
    blocks = zip(batch.blocks, shape.targets, strict=True)
    return replace(
        batch,
        blocks=tuple(_padded(block, size, table) for block, size in blocks),
        nodes=_longer(batch.nodes, shape.nodes),
        position=_longer(batch.position, shape.nodes, fill=batch.host.begin),
        node_x=None if batch.node_x is None else _longer(batch.node_x, shape.nodes),
    )


def _padded(block: Block, size: int, edge_table: Tensor | None) -> Block:
    return Block(
        target=_longer(block.target, size),
        neighbor=_longer(block.neighbor, size),
        mask=_longer(block.mask, size),
        dt=_longer(block.dt, size),
        eid=_longer(block.eid, size, fill=-1),
        edge_row=None if block.edge_row is None else _longer(block.edge_row, size),
        edge_table=edge_table,
    )


def _longer(column: Tensor, size: int, fill: int = 0) -> Tensor:
    """Return `column` with rows of `fill` behind it, `size` in all."""
    rest = column.new_full((size - len(column), *column.shape[1:]), fill)
    return torch.cat([column, rest]) if len(rest) else column


def _check_fits(found: BatchShape, shape: BatchShape) -> None:
    pairs = [*zip(found.targets, shape.targets, strict=False), (found.nodes, shape.nodes)]
    pairs.append((found.edges, shape.edges))
    if len(found.targets) != len(shape.targets) or any(rows > room for rows, room in pairs):
        raise ValueError(f"a batch of {found} cannot be padded to {shape}, which has less room")
