"""One hop down: the block from a frontier to its neighbors, and the frontier below it.

Each step is here twice: natively on the CPU, where a torch operation on many elements would start
torch's own threads beside each of a loader's, and by sorting on a GPU, in shapes that the host
knows without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.batch import Block
from tgflow.events import NO_NODE
from tgflow.graph import Neighbors
from tgflow.sampling import _native

_TWO_TO_64 = 2.0**64


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Queries: which nodes a hop asks about, at what times, and as of which log positions."""

    nodes: Tensor
    """int64 `[N]`. Rows from `size` on, which there are only on a GPU, hold `NO_NODE`."""
    t: Tensor
    """int64 `[N]`: ticks; zeros where rows differ by other columns alone."""
    position: Tensor | None = None
    """int64 `[N]`: a log position that neighbors inherit from their targets, or None."""
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


def distinct(frontier: Frontier) -> tuple[Frontier, Tensor]:
    """Return each query once, in order of first appearance, and the row of each, int64 `[N]`.

    Does not synchronize. On a GPU the result has as many rows as `frontier`.
    """
    if not frontier.nodes.is_cpu:
        return distinct_by_sorting(frontier)
    nodes, t, position, row = _native.unique_queries(frontier.nodes, frontier.t, frontier.position)
    return Frontier(nodes, t, position), row


def distinct_by_sorting(frontier: Frontier) -> tuple[Frontier, Tensor]:
    """Do what `distinct` does, on any device."""
    columns = [frontier.nodes, frontier.t]
    if frontier.position is not None:
        columns.append(frontier.position)
    row, size = first_rows(columns)
    nodes, t, *rest = _scattered(columns, row)
    return Frontier(nodes, t, rest[0] if rest else None, size), row


def expand(
    frontier: Frontier,
    neighbors: Neighbors,
    seconds_per_tick: float,
    *,
    by_time: bool = True,
    by_position: bool = True,
) -> tuple[Block, Frontier]:
    """Return the block from `frontier` to its neighbors, and the frontier below, each row once.

    The frontier below holds the targets and then their neighbors at the times of their events, with
    their targets' positions, in order of first appearance. Does not synchronize.

    Args:
        frontier: The targets.
        neighbors: Their neighbors, `[N, k]`.
        seconds_per_tick: Length of a tick.
        by_time: Whether rows of the frontier below that differ only in time are kept apart.
        by_position: Whether those that differ only in position are.

    Returns:
        The block, whose missing slots hold row 0, and the frontier. On the CPU that has just the
        rows in use; on a GPU, where the host does not know how many, `N * (k + 1)`.
    """
    by_position = by_position and frontier.position is not None
    if not frontier.nodes.is_cpu:
        return expand_by_sorting(
            frontier, neighbors, seconds_per_tick, by_time=by_time, by_position=by_position
        )
    links, (nodes, t, position) = _native.expand_frontier(
        (frontier.nodes, frontier.t, frontier.position),
        (neighbors.nodes, neighbors.t),
        seconds_per_tick,
        by_time=by_time,
        by_position=by_position,
    )
    below = Frontier(nodes, torch.zeros_like(nodes) if t is None else t, position)
    return Block(*links, eid=neighbors.eid), below


def expand_by_sorting(
    frontier: Frontier,
    neighbors: Neighbors,
    seconds_per_tick: float,
    *,
    by_time: bool = True,
    by_position: bool = True,
) -> tuple[Block, Frontier]:
    """Do what `expand` does, on any device."""
    num, k = neighbors.nodes.shape
    mask = neighbors.mask
    columns = [torch.cat([frontier.nodes, neighbors.nodes.reshape(-1)])]
    if by_time:
        columns.append(torch.cat([frontier.t, neighbors.t.reshape(-1)]))
    if by_position and frontier.position is not None:
        columns.append(torch.cat([frontier.position, for_each_slot(frontier.position, k)]))
    unused = torch.arange(num, device=mask.device) >= frontier.size
    absent = torch.cat([unused, ~mask.reshape(-1)])  # they take row 0 and add none
    columns = [torch.where(absent, column[:1], column) for column in columns]
    row, size = first_rows(columns)
    nodes, *rest = _scattered(columns, row)
    t = rest.pop(0) if by_time else torch.zeros_like(nodes)
    block = Block(
        target=row[:num],
        neighbor=row[num:].view(num, k),
        mask=mask,
        dt=_seconds(frontier.t, neighbors, mask, seconds_per_tick),
        eid=neighbors.eid,
    )
    return block, Frontier(nodes, t, rest[0] if rest else None, size)


def chain(frontier: Frontier, neighbors: Neighbors, seconds_per_tick: float) -> Block:
    """Return the block from `frontier` to its neighbors where equal rows stay apart.

    The frontier below holds the targets, then a row for each slot of `neighbors`, missing or not.
    """
    num, k = neighbors.nodes.shape
    row = torch.arange(num * (k + 1), device=neighbors.nodes.device)
    mask = neighbors.mask
    return Block(
        target=row[:num],
        neighbor=row[num:].view(num, k),
        mask=mask,
        dt=_seconds(frontier.t, neighbors, mask, seconds_per_tick),
        eid=neighbors.eid,
    )


def for_each_slot(column: Tensor, k: int) -> Tensor:
    """Return each target's value for each of its `k` neighbors, `[N * k]`."""
    return column.repeat_interleave(k, output_size=len(column) * k)


def _seconds(t: Tensor, neighbors: Neighbors, mask: Tensor, seconds_per_tick: float) -> Tensor:
    """Return the seconds from each neighbor's event to its target's time, 0 without a neighbor."""
    ticks = torch.empty(mask.shape, dtype=torch.float64, device=mask.device)
    torch.sub(t.unsqueeze(1), neighbors.t, out=ticks)
    ticks = torch.where(ticks < 0, ticks + _TWO_TO_64, ticks)  # more than int64 holds
    return ticks.mul_(seconds_per_tick).to(torch.float32).mul_(mask)


def _scattered(columns: Sequence[Tensor], row: Tensor) -> list[Tensor]:
    """Return columns whose row `row[i]` is row `i` of `columns`; the others are empty."""
    fills = (NO_NODE, *[0] * len(columns))
    return [
        torch.full_like(column, fill).scatter_(0, row, column)
        for column, fill in zip(columns, fills, strict=False)
    ]


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
