"""What a graph is given, checked and brought to where it is kept."""

from __future__ import annotations

import torch

from tgflow.events import COLUMNS, EventBatch
from tgflow.tables import FeatureTable
from tgflow.tables.protocols import Table
from tgflow.units import parse_bytes

LEAST_BUDGET = 4096


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


def width_of(table: Table | None) -> int:
    """Return the width of a table's rows, 0 without one."""
    return 0 if table is None else table.dim


def check_width(events: EventBatch, dim: int) -> None:
    """Raise ValueError unless the features of events are as wide as a graph's, which are `dim`."""
    if events.x_dim != dim and (len(events) or events.x is not None):
        raise ValueError(
            f"the graph has edge features of width {dim}, the batch has {events.x_dim}; "
            "create the graph with TemporalGraph(edge_x_dim=...)"
        )


def budget_of(device_budget: int | str) -> int:
    """Return a budget of memory in bytes.

    Raises:
        TypeError: If it is neither a whole number nor text.
        ValueError: If it is no size, or too small.
    """
    budget = parse_bytes(device_budget)
    if budget < LEAST_BUDGET:
        raise ValueError(
            f"device_budget must be at least {LEAST_BUDGET} bytes, got {device_budget!r}"
        )
    return budget


def on_host(events: EventBatch) -> EventBatch:
    """Return the events with contiguous columns on the CPU; features stay where they are."""
    columns = {name: getattr(events, name) for name in COLUMNS}
    for name, column in columns.items():
        if name != "x" and column is not None:
            columns[name] = column.cpu().contiguous()
    return EventBatch.checked(**columns, new_nodes=events.new_nodes)
