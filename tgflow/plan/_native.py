"""Bindings of the core that plans use: tensors in and out, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow import _core
from tgflow._core import (
    Belady,
    Clock,
    CountOf,
    EventCounts,
    Op,
    PairIndex,
    Preparer,
    ReuseMap,
    Slab,
    SlabPool,
    choose_positions,
    padded_rows,
)

__all__ = [
    "Belady",
    "Clock",
    "CountOf",
    "EventCounts",
    "Op",
    "PairIndex",
    "Preparer",
    "ReuseMap",
    "Slab",
    "SlabPool",
    "choose_positions",
    "draw_replay",
    "gather_rows",
    "padded_rows",
    "unique_events",
]


def unique_events(eids: list[Tensor]) -> tuple[Tensor, list[Tensor], int]:
    """Return the distinct events of `eids`, and the row of each event among them.

    Returns:
        int64 `[R]`: -1 and then the events in order of first appearance; for each tensor of `eids`
        the rows, int64 of its shape, 0 where it holds -1; and the number of distinct ones, -1
        included, before the last tensor.
    """
    rows = [torch.empty_like(eid) for eid in eids]
    distinct = torch.empty(1 + sum(eid.numel() for eid in eids), dtype=torch.int64)
    counts = _core.unique_events(eids, rows, distinct)
    return distinct[: counts[-1]].clone(), rows, counts[-2]  # a copy: the rest is unused


def gather_rows(table: Tensor, row: Tensor) -> Tensor:
    """Return `table[row]` without torch's threads, which would compete with a loader's."""
    out = table.new_empty(len(row), table.shape[1])
    row_bytes = table.shape[1] * table.element_size()
    _core.gather_rows(table, row_bytes, len(table), row, out)
    return out


def draw_replay(begin: int, end: int, half_life: float, key: int, num: int) -> Tensor:
    """Return up to `num` distinct positions of `[begin, end)`, ascending, recent ones likelier."""
    out = torch.empty(num, dtype=torch.int64)
    size = _core.draw_replay(begin, end, half_life, key, out)
    return out[:size]
