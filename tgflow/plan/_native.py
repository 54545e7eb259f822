"""The plan's only door to the core: tensors in and out, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow import _core
from tgflow._core import (
    Belady,
    CountOf,
    EventCounts,
    Preparer,
    ReuseMap,
    Slab,
    SlabPool,
    padded_rows,
)

__all__ = [
    "Belady",
    "CountOf",
    "EventCounts",
    "PairIndex",
    "Preparer",
    "ReuseMap",
    "Slab",
    "SlabPool",
    "draw_replay",
    "gather_rows",
    "padded_rows",
    "unique_events",
]


def unique_events(eids: list[Tensor]) -> tuple[Tensor, list[Tensor], int]:
    """Return the distinct events of `eids`, and the row of each event among them.

    Returns:
        int64 `[R]`: -1 and then the events in order of first appearance; for each tensor of `eids`
        the rows, int64 of its shape, 0 where it holds -1; and how many of the distinct ones, -1
        included, there were before the last tensor.
    """
    rows = [torch.empty_like(eid) for eid in eids]
    distinct = torch.empty(1 + sum(eid.numel() for eid in eids), dtype=torch.int64)
    counts = _core.unique_events(eids, rows, distinct)
    return distinct[: counts[-1]].clone(), rows, counts[-2]  # the rest is room, and these are kept


def gather_rows(table: Tensor, row: Tensor) -> Tensor:
    """Return `table[row]`; torch would start threads of its own beside a loader's.

    Args:
        table: float32 `[R, x_dim]`, contiguous.
        row: int64 `[B]`, contiguous.
    """
    out = table.new_empty(len(row), table.shape[1])
    row_bytes = table.shape[1] * table.element_size()
    _core.gather_rows(table, row_bytes, len(table), row, out)
    return out


def draw_replay(begin: int, end: int, half_life: float, key: int, num: int) -> Tensor:
    """Return up to `num` distinct positions of `[begin, end)`, ascending, recent ones likelier."""
    out = torch.empty(num, dtype=torch.int64)
    size = _core.draw_replay(begin, end, half_life, key, out)
    return out[:size]


class PairIndex:
    """The distinct destinations and (src, dst) pairs of every prefix of a log."""

    def __init__(self) -> None:
        self.native = _core.PairIndex()
        """The core's index, for what reads it there."""

    def __len__(self) -> int:
        return len(self.native)

    def append(self, src: Tensor, dst: Tensor) -> None:
        """Read on: the next events' ends, int64 `[N]`."""
        self.native.append(src.contiguous(), dst.contiguous())

    def num_destinations(self, before: int) -> int:
        """Return how many distinct destinations the first `before` events have."""
        return self.native.num_destinations(before)

    def num_pairs(self, before: int) -> int:
        """Return how many distinct pairs they are."""
        return self.native.num_pairs(before)

    def destinations(self, before: int) -> Tensor:
        """Return the destinations of the first `before` events, each once, int64 `[D]`."""
        out = torch.empty(self.num_destinations(before), dtype=torch.int64)
        self.native.destinations(before, out)
        return out

    def destinations_of(self, src: int, before: int) -> Tensor:
        """Return whom a source has had an event with in the first `before` events, int64 `[D]`."""
        out = torch.empty(self.native.num_destinations_of(src, before), dtype=torch.int64)
        self.native.destinations_of(src, before, out)
        return out

    def draw_destinations(
        self,
        key: int,
        src: Tensor,
        dst: Tensor,
        cut: Tensor,
        num: int,
        limit: int,
        *,
        collide: bool = False,
    ) -> tuple[Tensor, int]:
        """Return `num` destinations for each event, `[B, num]`, and how many are fallbacks."""
        out = torch.empty(len(src), num, dtype=torch.int64)
        return out, self.native.draw_destinations(key, src, dst, cut, limit, collide, out)

    def draw_pairs(
        self,
        key: int,
        src: Tensor,
        dst: Tensor,
        cut: Tensor,
        num: int,
        limit: int,
        start: int,
        *,
        replace: bool = True,
    ) -> tuple[Tensor, Tensor, int]:
        """Return sources and destinations of `num` pairs for each event, and how many fell back."""
        out_src, out_dst = torch.empty(2, len(src), num, dtype=torch.int64).unbind(0)
        fallbacks = self.native.draw_pairs(
            key, src, dst, cut, limit, start, replace, out_src, out_dst
        )
        return out_src, out_dst, fallbacks
