"""Sizes that batches on a GPU are padded to: few shapes recur, each captured once.

A size is a function of the number of rows in use alone, not of earlier batches or of what is
known to the host. So a batch has the same shape, and a step on it the same bits, wherever a run
was resumed, and whether it is captured or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from tgflow.graph.batch import Batch, Block
from tgflow.plan._native import padded_rows

if TYPE_CHECKING:
    from tgflow.cuda.row_lists import RowLists


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Numbers of rows of the parts of a batch, below its events."""

    targets: tuple[int, ...]
    """Targets of each block."""
    nodes: int
    """Rows of the lowest frontier; 0 without one."""
    edges: int
    """Rows of the edge table; 0 without one."""

    @classmethod
    def of_used(cls, num_used: Sequence[int]) -> BatchShape:
        """Return the shape from `Batch.num_used`."""
        *targets, nodes, edges = num_used
        return cls(tuple(targets), nodes, edges)

    def rounded(self) -> BatchShape:
        """Return the shape with each number rounded up to a size.

        Sizes are powers of two from 64, and from 8,192 the halves between them as well: a kernel
        on fewer rows takes as long, and each further shape is another capture.
        """
        targets = tuple(map(padded_rows, self.targets))
        nodes, edges = (padded_rows(rows) if rows else 0 for rows in (self.nodes, self.edges))
        return BatchShape(targets, nodes, edges)


def shape_of(batch: Batch) -> BatchShape:
    """Return the shape of a batch."""
    table = batch.blocks[0].edge_table if batch.blocks else None
    targets = tuple(len(block.target) for block in batch.blocks)
    return BatchShape(targets, len(batch.nodes), 0 if table is None else len(table))


class Padding(NamedTuple):
    """Padded length of a column, and its fill value."""

    rows: int
    fill: int


def paddings(batch: Batch, shape: BatchShape) -> dict[int, Padding]:
    """Return the padding of each column for `shape`, by its `id`; others are not padded."""
    found: dict[int, Padding] = {}

    def pad(column: Tensor | None, rows: int, fill: int = 0) -> None:
        if column is not None and len(column) < rows:
            found[id(column)] = Padding(rows, fill)

    for block, rows in zip(batch.blocks, shape.targets, strict=True):
        for column in (block.target, block.neighbor, block.mask, block.dt, block.edge_row):
            pad(column, rows)
        pad(block.eid, rows, fill=-1)
        pad(block.edge_table, shape.edges)
        if block.reused is not None:
            pad(block.reused.weight, rows)
    pad(batch.nodes, shape.nodes)
    pad(batch.position, shape.nodes, fill=batch.host.begin)
    pad(batch.node_x, shape.nodes)
    return found


def cut(batch: Batch, shape: BatchShape) -> Batch:
    """Return a batch of a GPU without the padding beyond `shape`, as views. Does not synchronize.

    Columns with fewer rows than `shape` are kept; `num_used` is omitted.
    """
    table = batch.blocks[0].edge_table if batch.blocks else None
    table = _shorter(table, shape.edges)
    top, *below = *shape.targets, shape.nodes
    blocks = zip(batch.blocks, shape.targets, below, strict=True)
    return replace(
        batch,
        blocks=tuple(_cut_block(block, rows, num, table) for block, rows, num in blocks),
        src_lists=_cut_lists(batch.src_lists, top),
        dst_lists=_cut_lists(batch.dst_lists, top),
        nodes=_shorter(batch.nodes, shape.nodes),
        position=_shorter(batch.position, shape.nodes),
        node_x=_shorter(batch.node_x, shape.nodes),
        num_used=None,
    )


def _cut_block(block: Block, rows: int, below: int, edge_table: Tensor | None) -> Block:
    return Block(
        target=_shorter(block.target, rows),
        neighbor=_shorter(block.neighbor, rows),
        mask=_shorter(block.mask, rows),
        dt=_shorter(block.dt, rows),
        eid=_shorter(block.eid, rows),
        edge_row=_shorter(block.edge_row, rows),
        edge_table=edge_table,
        reused=block.reused,
        target_lists=_cut_lists(block.target_lists, below, rows),
        neighbor_lists=_cut_lists(block.neighbor_lists, below, rows * block.mask.shape[1]),
    )


def _cut_lists(lists: RowLists | None, rows: int, slots: int | None = None) -> RowLists | None:
    """Return lists without rows and slots of padding, which are in none."""
    if lists is None:
        return None
    return type(lists)(lists.start[: rows + 1], lists.slot[:slots])


def _shorter(column: Any, rows: int) -> Any:
    return column if column is None or len(column) <= rows else column[:rows]
