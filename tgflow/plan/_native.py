"""Bindings of the core that plans use: tensors in and out, on the CPU, and slabs that it fills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tgflow import _core
from tgflow._core import BatchRequest as BatchRequest
from tgflow._core import Belady as Belady
from tgflow._core import Clock as Clock
from tgflow._core import CountOf as CountOf
from tgflow._core import EventCounts as EventCounts
from tgflow._core import Op as Op
from tgflow._core import PairIndex as PairIndex
from tgflow._core import Preparer as Preparer
from tgflow._core import ReuseMap as ReuseMap
from tgflow._core import Slab as Slab
from tgflow._core import SlabPool as SlabPool
from tgflow._core import choose_positions as choose_positions
from tgflow._core import padded_rows as padded_rows
from tgflow.graph.batch import BatchSlice, HostEvents


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


Feature = Literal["edge_x", "node_x"]
"""A table of the graph that batches read rows of."""


def for_each_negative(column: Tensor, m: int) -> Tensor:
    """Repeat each event's value for its negatives, `[B, m]`."""
    return column.unsqueeze(1).expand(-1, m)


class BlockPlaces(NamedTuple):
    """Byte offsets of the columns of a `Block` in a slab; -1: no such column."""

    targets: int
    """Its rows, padding included."""
    target: int
    neighbor: int
    mask: int
    dt: int
    eid: int
    edge_row: int


class BatchPlaces(NamedTuple):
    """Byte offsets and row counts of a batch's columns in a slab; -1: no such column."""

    num_events: int
    num_new: int
    num_queries: int
    num_fallbacks: int
    """Fallbacks among the negatives of the whole batch."""
    eid: int
    t: int
    ends: int
    """Sources, destinations, negatives' destinations and, if they have their own, sources."""
    row: int
    """Row of each of those in the top frontier."""
    counts: int
    num_nodes: int
    nodes: int
    position: int
    num_edges: int
    """Rows of the edge table, padding included; number of them that the blocks read."""
    num_in_blocks: int
    own_row: int
    edge_ids: int
    """Ids of the edge table, where its rows are gathered separately."""
    edge_x: int
    x: int
    node_ids: int
    node_x: int
    log_q: int
    query_t: int
    query_position: int
    words: int
    """Of draws alone: time and position of each query, and what kernels read: the batch's begin,
    the tick at which the horizon begins, and `PARAMS` of each hop."""

    @property
    def named(self) -> set[Feature]:
        """The tables of which the slab holds ids instead of rows."""
        named: set[Feature] = {"edge_x"} if self.edge_ids >= 0 else set()
        return named | {"node_x"} if self.node_ids >= 0 else named


PARAMS = 5
"""Parameters of a hop's sampler, see `tgflow.graph.query.Queries`."""


@dataclass(frozen=True, slots=True, eq=False)
class FilledSlab:
    """A slab that holds a batch, or its draws."""

    epoch: int
    index: int
    key: int
    """Key of its draws: of the batch, or of the slice."""
    slab: Slab
    host: HostEvents
    """The batch's events: a copy."""
    slice: BatchSlice | None
    at: BatchPlaces
    blocks: list[BlockPlaces]
    added: Mapping[str, tuple[int, torch.dtype]]
    """Byte offsets of further columns of the events, and their types."""

    @property
    def memory(self) -> Tensor:
        """All bytes of the slab so far, uint8: it and its views keep the slab alive."""
        return torch.frombuffer(self.slab, dtype=torch.uint8)


class SlabColumns:
    """A buffer, uint8, whose views are columns."""

    def __init__(self, memory: Tensor) -> None:
        types = torch.int64, torch.float32, torch.float64, torch.bool
        self._typed = {dtype: memory.view(dtype) for dtype in types}

    def column(
        self, place: int, rows: int, width: int | None = None, dtype: torch.dtype = torch.int64
    ) -> Tensor:
        """Return `[rows]` or `[rows, width]` at byte `place`."""
        typed = self._typed[dtype]
        start = place // typed.element_size()
        if width is None:
            return typed.as_strided((rows,), (1,), start)
        return typed.as_strided((rows, width), (width, 1), start)

    def added(self, of: FilledSlab) -> dict[str, Tensor]:
        """Return the further columns of a batch's events."""
        num = of.at.num_events
        return {name: self.column(at, num, None, kind) for name, (at, kind) in of.added.items()}

    def features(self, place: int, rows: int, width: int) -> Tensor | None:
        """Return float32 `[rows, width]` at byte `place`; None where there are none."""
        return None if place < 0 else self.column(place, rows, width, torch.float32)

    def ends(self, place: int, at: BatchPlaces, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return a column of sources, destinations, negatives' sources and destinations."""
        num = at.num_events
        src, dst = self.column(place, num), self.column(place + 8 * num, num)
        negative_dst = self.column(place + 16 * num, num, m)
        if at.num_queries == num * (2 + m):
            return src, dst, for_each_negative(src, m), negative_dst
        return src, dst, self.column(place + 8 * num * (2 + m), num, m), negative_dst
