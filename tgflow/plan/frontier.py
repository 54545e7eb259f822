"""Frontiers: the distinct queries of a batch, and the blocks that lead from one to the next.

What grows with the neighborhoods is filled by the core: a torch operation on many elements would
start torch's own threads under each of the loader's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow import _core
from tgflow.batch import Block
from tgflow.sampling import Neighbors


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Distinct queries (node, time, start), in order of first appearance.

    A query's start is the log position at which its event's batch started: memory is read there,
    and batch-stale neighborhoods end there. Replayed events have other starts than new ones.
    """

    node: Tensor
    """int64 `[N]`."""
    t: Tensor
    """int64 `[N]`: ticks; zeros where queries are told apart without it."""
    start: Tensor
    """int64 `[N]`; zeros where queries are told apart without it."""

    def __len__(self) -> int:
        return len(self.node)

    def _address(self) -> _core.FrontierIn:
        return _core.FrontierIn(
            self.node.data_ptr(), self.t.data_ptr(), self.start.data_ptr(), len(self)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """A block but for its edge features."""

    target: Tensor
    neighbor: Tensor
    mask: Tensor
    dt: Tensor
    eid: Tensor

    def block(self, edge_row: Tensor, edge_table: Tensor | None) -> Block:
        """Return the block with its edges' rows in the batch's table of distinct edges."""
        return Block(self.target, self.neighbor, self.mask, self.dt, self.eid, edge_row, edge_table)


class _Draft:
    """Room for a frontier of at most `capacity` queries while the core writes it."""

    def __init__(self, capacity: int, by_time: bool, by_start: bool) -> None:
        self.node = torch.empty(capacity, dtype=torch.int64)
        self.t = torch.empty_like(self.node) if by_time else None
        self.start = torch.empty_like(self.node) if by_start else None
        self.out = _core.FrontierOut(
            self.node.data_ptr(),
            0 if self.t is None else self.t.data_ptr(),
            0 if self.start is None else self.start.data_ptr(),
        )

    def frontier(self, size: int) -> Frontier:
        node = self.node[:size]
        t = torch.zeros_like(node) if self.t is None else self.t[:size]
        start = torch.zeros_like(node) if self.start is None else self.start[:size]
        return Frontier(node, t, start)


def unique_queries(node: Tensor, t: Tensor, start: Tensor) -> tuple[Frontier, Tensor]:
    """Return the distinct queries and the row of each query among them, int64 `[Q]`.

    Args:
        node: Nodes, int64 `[Q]`, contiguous.
        t: Times in ticks, int64 `[Q]`, contiguous.
        start: Log positions at which their batches started, int64 `[Q]`, contiguous.
    """
    draft = _Draft(len(node), by_time=True, by_start=True)
    row = torch.empty_like(node)
    size = _core.unique_queries(Frontier(node, t, start)._address(), draft.out, row.data_ptr())
    return draft.frontier(size), row


def expand(
    targets: Frontier,
    neighbors: Neighbors,
    seconds_per_tick: float,
    *,
    by_time: bool = True,
    by_start: bool = True,
) -> tuple[Links, Frontier]:
    """Return the links from `targets` to their neighbors, and the frontier below.

    The frontier below holds the targets and then their neighbors at the times of their events and
    with their targets' starts, each once; told apart by time and start only where asked for.
    """
    num, k = neighbors.nodes.shape
    draft = _Draft(num * (k + 1), by_time, by_start)
    links = Links(
        target=torch.empty(num, dtype=torch.int64),
        neighbor=torch.empty(num, k, dtype=torch.int64),
        mask=torch.empty(num, k, dtype=torch.bool),
        dt=torch.empty(num, k, dtype=torch.float32),
        eid=neighbors.eid,
    )
    out = _core.BlockOut(
        links.target.data_ptr(), links.neighbor.data_ptr(), links.mask.data_ptr(),
        links.dt.data_ptr(),
    )  # fmt: skip
    source = _core.NeighborsIn(neighbors.nodes.data_ptr(), neighbors.t.data_ptr(), k)
    size = _core.expand_frontier(targets._address(), source, seconds_per_tick, draft.out, out)
    return links, draft.frontier(size)


def unique_events(eids: list[Tensor]) -> tuple[Tensor, list[Tensor], list[int]]:
    """Return the distinct events of `eids`, and the row of each event among them.

    Returns:
        int64 `[R]`: -1 and then the events in order of first appearance; for each tensor of `eids`
        the rows, int64 of its shape, 0 where it holds -1; and how many of the distinct ones there
        were before the first tensor, which is 1, and after each.
    """
    rows = [torch.empty_like(eid) for eid in eids]
    distinct = torch.empty(1 + sum(eid.numel() for eid in eids), dtype=torch.int64)
    lists = [
        _core.EventList(eid.data_ptr(), eid.numel(), row.data_ptr())
        for eid, row in zip(eids, rows, strict=True)
    ]
    counts = _core.unique_events(lists, distinct.data_ptr())
    return distinct[: counts[-1]].clone(), rows, counts  # the rest is room, and drafts are kept
