"""What a graph is given, checked and brought to where it is kept."""

from __future__ import annotations

import torch

from tgflow.events import EventBatch
from tgflow.tables import FeatureTable
from tgflow.tables.protocols import Table


def edge_table(dim: int, table: Table | None) -> Table | None:
    """Return the table of edge features: the one that is given, or a new one; None without any.

    Raises:
        ValueError: If the one that is given is of another width, or not empty, or not float32.
    """
    if table is None:
        return FeatureTable(dim) if dim else None
    if dim not in (0, table.dim):
        raise ValueError(f"give edge_x or edge_x_dim: the table's width is {table.dim}, not {dim}")
    if table.dtype != torch.float32 or len(table) > 0:
        raise ValueError(
            f"edge_x must be an empty table of float32 rows, got {len(table)} rows of {table.dtype}"
        )
    return table


def on_host(events: EventBatch) -> EventBatch:
    """Return the events with contiguous columns on the CPU; features stay where they are."""
    src, dst, t = (column.cpu().contiguous() for column in (events.src, events.dst, events.t))
    label = None if events.label is None else events.label.cpu().contiguous()
    return EventBatch.checked(src, dst, t, events.x, label, events.new_nodes)
