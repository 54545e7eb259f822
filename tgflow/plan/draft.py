"""A batch before its features are read: what it will gather is known, and can be planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from tgflow import _core
from tgflow.batch import Batch, Block
from tgflow.plan.frontier import Links, unique_events

Feature = Literal["edge_x", "node_x"]
"""A table of the graph whose rows a batch reads."""

_NO_ROW = torch.zeros((), dtype=torch.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A batch without features, and which rows of them it needs."""

    batch: Batch
    """As it will be, but for `x`, `node_x` and the blocks' `edge_table`."""
    edges: Tensor
    """int64 `[R]`: -1 and then the distinct events whose rows are to be gathered, in one call:
    first the blocks', in order of first appearance, then the batch's own. Empty if the graph has no
    edge features."""
    num_in_blocks: int
    """How many of `edges`, from the first on, the blocks read."""
    own_row: Tensor
    """int64 `[B]`: the row of each of the batch's own events among `edges`."""
    nodes: Tensor
    """int64 `[U]`: the row of each of the batch's `nodes` in the graph's table; -1 for those that
    have none. Empty if the graph has no node features."""

    @property
    def ids(self) -> dict[Feature, Tensor]:
        """The rows that it needs of each table."""
        return {"edge_x": self.edges, "node_x": self.nodes}

    def finished(self, rows: Mapping[Feature, Tensor]) -> Batch:
        """Return the batch.

        Args:
            rows: Of each of the graph's tables the rows of `ids`, float32 `[len(ids), x_dim]`.
        """
        batch = replace(self.batch, node_x=rows["node_x"]) if "node_x" in rows else self.batch
        if "edge_x" not in rows:
            return batch
        edge_x = rows["edge_x"]
        table = edge_x[: self.num_in_blocks]
        blocks = tuple(replace(block, edge_table=table) for block in batch.blocks)
        return replace(batch, x=self._own(edge_x), blocks=blocks)

    def _own(self, rows: Tensor) -> Tensor:
        """Copy the own events' rows, by the core: torch would start threads of its own."""
        x = rows.new_empty(len(self.own_row), rows.shape[1])
        row_bytes = rows.shape[1] * rows.element_size()
        _core.gather_rows(
            rows.data_ptr(), row_bytes, len(rows), self.own_row.data_ptr(), len(x), x.data_ptr()
        )
        return x

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors take."""
        columns = [self.edges, self.own_row, self.nodes, *_tensors(self.batch)]
        for block in self.batch.blocks:
            columns += _tensors(block)
        return sum(column.nbytes for column in columns)


def _tensors(part: Batch | Block) -> list[Tensor]:
    columns = (getattr(part, field.name) for field in fields(part))
    return [column for column in columns if isinstance(column, Tensor)]


def draft_of(
    batch: Batch, links: Sequence[Links], *, with_edges: bool, nodes: Tensor | None
) -> Draft:
    """Return the draft of `batch`, which has no blocks yet.

    Args:
        batch: As it will be, but for what it reads of tables.
        links: Of its blocks.
        with_edges: Whether the graph has edge features.
        nodes: Rows of the batch's nodes, or None if the graph has no node features.
    """
    none = batch.eid[:0]
    nodes = none if nodes is None else nodes
    if not with_edges:
        blocks = tuple(link.block(_NO_ROW.expand_as(link.eid), None) for link in links)
        return Draft(replace(batch, blocks=blocks), none, 0, none, nodes)
    edges, (*rows, own_row), counts = unique_events([*(link.eid for link in links), batch.eid])
    blocks = tuple(link.block(row, None) for link, row in zip(links, rows, strict=True))
    num_in_blocks = counts[-2] if links else 1
    return Draft(replace(batch, blocks=blocks), edges, num_in_blocks, own_row, nodes)
