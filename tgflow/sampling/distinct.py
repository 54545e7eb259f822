"""Distinct rows of a few integer columns, in tensors of a shape that does not depend on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tgflow import _core
from tgflow.events import NO_NODE


def distinct_queries(
    nodes: Tensor, t: Tensor, before: Tensor | None
) -> tuple[tuple[Tensor, Tensor, Tensor | None], Tensor, Tensor]:
    """Return the distinct queries in order of first appearance; does not synchronize.

    Args:
        nodes: int64 `[N]`.
        t: int64 `[N]`.
        before: int64 `[N]`, or None.

    Returns:
        The columns of the distinct queries, int64 `[N]` each, with `NO_NODE` and zeros behind them;
        the row of each query among them, int64 `[N]`; and how many they are, int64 `[]`.
    """
    if not nodes.is_cpu:
        columns = [nodes, t] if before is None else [nodes, t, before]
        row, size = first_rows(columns)
        fills = (NO_NODE, 0, 0)
        nodes, t, *rest = (
            torch.full_like(column, fill).scatter_(0, row, column)
            for column, fill in zip(columns, fills, strict=False)
        )
        return (nodes, t, rest[0] if rest else None), row, size
    start = torch.zeros_like(nodes) if before is None else before
    out = torch.full_like(nodes, NO_NODE), torch.zeros_like(t), torch.zeros_like(start)
    row = torch.empty_like(nodes)
    num_distinct = _core.unique_queries(
        _core.FrontierIn(nodes.data_ptr(), t.data_ptr(), start.data_ptr(), len(nodes)),
        _core.FrontierOut(*(column.data_ptr() for column in out)),
        row.data_ptr(),
    )
    return (out[0], out[1], None if before is None else out[2]), row, torch.tensor(num_distinct)


def first_rows(columns: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return, per row, which distinct row it is, by first appearance, and how many there are.

    Sorts on the columns' device; their shapes are all that the host knows.

    Args:
        columns: Each int64 `[N]`.

    Returns:
        int64 `[N]` and int64 `[]`.
    """
    place = torch.arange(len(columns[0]), device=columns[0].device)
    order = place
    for column in reversed(columns):
        order = order[column[order].argsort(stable=True)]
    begins = place == 0  # a run of equal rows
    for column in columns:
        ordered = column[order]
        begins[1:] |= ordered[1:] != ordered[:-1]
    first = order[torch.where(begins, place, 0).cummax(0).values]  # of the run: sorting is stable
    appears = torch.zeros_like(place).scatter_(0, first, 1)
    number = appears.cumsum(0) - 1
    return torch.empty_like(place).scatter_(0, order, number[first]), appears.sum()
