"""Expansion of one hop: the block from a frontier to its neighbors, and the next frontier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from tgflow.base.describe import described
from tgflow.base.units import seconds_of
from tgflow.cuda.device import Device
from tgflow.graph import Neighbors
from tgflow.graph.batch import Block
from tgflow.graph.events import NO_NODE
from tgflow.graph.sampling import _native

if TYPE_CHECKING:
    from tgflow.cuda import frontier as kernels

_TWO_TO_64 = 2.0**64


@described
@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Queries of a hop: nodes, times and log positions."""

    nodes: Tensor
    """int64 `[N]`. Rows from `size` on, which exist only on a GPU, hold `NO_NODE`."""
    t: Tensor
    """int64 `[N]`: ticks; zeros where rows differ only in other columns."""
    position: Tensor | None = None
    """int64 `[N]`: log position that neighbors inherit from their targets, or None."""
    num_used: Tensor | None = None
    """int64 `[]`: rows in use; None: all are."""

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def size(self) -> Tensor:
        """Rows in use, int64 `[]`."""
        if self.num_used is not None:
            return self.num_used
        return torch.full((), len(self.nodes), device=self.nodes.device)

    @property
    def rows(self) -> kernels.QueryRows:
        """The columns as kernel arguments."""
        from tgflow.cuda import frontier as kernels

        return kernels.QueryRows(self.nodes, self.t, self.position, self.num_used)

    def some(self, at: Tensor, num_rows: int | None = None) -> Frontier:
        """Return the rows `at`, int64 `[n]`, padded to `num_rows`."""
        padding = 0 if num_rows is None else num_rows - len(at)

        def column(values: Tensor, fill: int = 0) -> Tensor:
            chosen = values.index_select(0, at)
            return F.pad(chosen, (0, padding), value=fill) if padding else chosen

        position = None if self.position is None else column(self.position)
        used = None if num_rows is None else torch.full((), len(at), device=at.device)
        return Frontier(column(self.nodes, NO_NODE), column(self.t), position, used)


def distinct(frontier: Frontier, gpu: Device | None) -> tuple[Frontier, Tensor]:
    """Return the distinct queries, in order of first appearance, and all rows, int64 `[N]`."""
    if gpu is not None:
        from tgflow.cuda import frontier as kernels

        rows, row = kernels.unique_queries(gpu, frontier.rows)
        return Frontier(*rows), row
    nodes, t, position, row = _native.unique_queries(frontier.nodes, frontier.t, frontier.position)
    return Frontier(nodes, t, position), row


def expand(
    frontier: Frontier,
    neighbors: Neighbors,
    seconds_per_tick: float,
    gpu: Device | None,
    *,
    by_time: bool = True,
    by_position: bool = True,
) -> tuple[Block, Frontier]:
    """Return the block from `frontier` to its neighbors, and the deduplicated frontier below.

    The frontier below holds the targets and then their neighbors at the times of their events, with
    their targets' positions, in order of first appearance. Rows that differ only in time stay
    separate `by_time`, and those that differ only in position `by_position`. On the CPU it has only
    rows in use; on a GPU, which does not synchronize to count them, `N * (k + 1)`.
    """
    by_position = by_position and frontier.position is not None
    how = {"by_time": by_time, "by_position": by_position}
    if gpu is not None:
        from tgflow.cuda import frontier as kernels

        links, rows = kernels.expand_frontier(
            gpu, frontier.rows, neighbors.nodes, neighbors.t, seconds_per_tick, **how
        )
        return Block(*links, eid=neighbors.eid), Frontier(*rows)
    links, (nodes, t, position) = _native.expand_frontier(
        (frontier.nodes, frontier.t, frontier.position),
        (neighbors.nodes, neighbors.t),
        seconds_per_tick,
        **how,
    )
    below = Frontier(nodes, torch.zeros_like(nodes) if t is None else t, position)
    return Block(*links, eid=neighbors.eid), below


def chain(frontier: Frontier, neighbors: Neighbors, seconds_per_tick: float) -> Block:
    """Return the block from `frontier` to its neighbors, without deduplication."""
    num, k = neighbors.nodes.shape
    row = torch.arange(num * (k + 1), device=neighbors.nodes.device)
    mask = neighbors.mask
    dt = seconds_of(frontier.t.unsqueeze(1) - neighbors.t, seconds_per_tick)
    dt = torch.where(dt < 0, dt + _TWO_TO_64 * seconds_per_tick, dt)  # more than int64 holds
    dt = dt.to(torch.float32).mul_(mask)
    return Block(row[:num], row[num:].view(num, k), mask, dt, neighbors.eid)


def for_each_slot(column: Tensor, k: int) -> Tensor:
    """Repeat each target's value for its `k` neighbors, `[N * k]`."""
    return column.repeat_interleave(k, output_size=len(column) * k)
