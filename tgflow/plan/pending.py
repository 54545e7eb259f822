"""A batch before its features are read: which rows it will gather is known, and can be planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.cuda import frontier
from tgflow.cuda.device import Device
from tgflow.plan import _native

Feature = Literal["edge_x", "node_x"]
"""A table of the graph whose rows a batch reads."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingBatch:
    """A batch without features, and which rows of them it needs."""

    batch: Batch
    """As it will be, but for `x`, `node_x` and the blocks' `edge_table`."""
    ids: dict[Feature, Tensor]
    """int64, of each table of the graph the rows to gather, in one call.

    `edge_x`: -1 and then the distinct events, first the blocks', in order of first appearance, then
    the batch's own; on a GPU as many more -1 as there could be events. `node_x`: the row of each of
    `nodes`, -1 for those that have none.
    """
    num_in_blocks: int = 0
    """How many rows of `edge_x`, from the first on, the blocks read; on a GPU all, as they may."""
    own_row: Tensor | None = None
    """int64 `[B]`: the row of each of the batch's own events among those of `edge_x`."""

    def with_features(self, rows: Mapping[Feature, Tensor]) -> Batch:
        """Return the batch, with features of the tables that are given.

        Args:
            rows: Of tables the rows of `ids`, float32 `[len(ids), x_dim]`.
        """
        node_x, edge_x = rows.get("node_x", self.batch.node_x), rows.get("edge_x")
        if edge_x is None or self.own_row is None:
            has_all = node_x is self.batch.node_x
            return self.batch if has_all else replace(self.batch, node_x=node_x)
        table = edge_x[: self.num_in_blocks]
        return replace(
            self.batch,
            x=_rows_of(edge_x, self.own_row),
            node_x=node_x,
            blocks=tuple(replace(block, edge_table=table) for block in self.batch.blocks),
        )

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors take."""
        columns = [*self.ids.values(), *self.batch.tensors()]
        if self.own_row is not None:
            columns.append(self.own_row)
        return sum(column.nbytes for column in columns)


def _rows_of(table: Tensor, row: Tensor) -> Tensor:
    return _native.gather_rows(table, row) if table.is_cpu else table.index_select(0, row)


def pending_batch(
    batch: Batch,
    *,
    with_edges: bool,
    node_rows: Tensor | None,
    gpu: Device | None,
    num_used: Sequence[Tensor] = (),
) -> PendingBatch:
    """Return `batch` with the rows of features that it needs.

    Args:
        batch: As it will be, but for what it reads of tables.
        with_edges: Whether the graph has edge features.
        node_rows: Rows of the batch's nodes, or None if the graph has no node features.
        gpu: Where the batch is; None: on the CPU.
        num_used: On a GPU the rows in use of all its frontiers from the top down, int64 `[]` each;
            none where there is no frontier, and nothing is cut to a size.
    """
    ids: dict[Feature, Tensor] = {} if node_rows is None else {"node_x": node_rows}
    if not with_edges:
        if num_used:
            no_edges = torch.zeros_like(num_used[0])
            batch = replace(batch, num_used=_stacked([*num_used, no_edges]))
        return PendingBatch(batch, ids)
    found = distinct_events([*(block.eid for block in batch.blocks), batch.eid], gpu)
    *rows, own_row = found.rows
    blocks = (replace(b, edge_row=row) for b, row in zip(batch.blocks, rows, strict=True))
    all_used = [] if found.num_used is None or not num_used else [*num_used, found.num_used]
    return PendingBatch(
        replace(batch, blocks=tuple(blocks), num_used=_stacked(all_used)),
        {"edge_x": found.eids, **ids},
        num_in_blocks=found.num_in_blocks,
        own_row=own_row,
    )


def _stacked(numbers: list[Tensor]) -> Tensor | None:
    return torch.stack(numbers) if numbers else None


class DistinctEvents(NamedTuple):
    """Events of several lists, each once; see `_native.unique_events`."""

    eids: Tensor
    rows: list[Tensor]
    num_in_blocks: int
    num_used: Tensor | None = None
    """On a GPU, how many of `eids` are in use, int64 `[]`; the others are padding."""


def distinct_events(eids: list[Tensor], gpu: Device | None) -> DistinctEvents:
    """As `_native.unique_events`, wherever the events are; padding may be read by blocks too."""
    if gpu is None:
        return DistinctEvents(*_native.unique_events(eids))
    all_eids = torch.cat([eid.reshape(-1) for eid in eids])
    distinct, row, num_used = frontier.unique_events(gpu, all_eids)
    parts = zip(torch.split(row, [eid.numel() for eid in eids]), eids, strict=True)
    rows = [part.view(eid.shape) for part, eid in parts]
    return DistinctEvents(distinct, rows, len(distinct), num_used)
