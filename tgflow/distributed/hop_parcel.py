"""What a batch asks of the owners of nodes in a hop, and what they answer, as flat vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tgflow.events import NO_NODE
from tgflow.graph import Neighbors
from tgflow.peers import Shard
from tgflow.sampling.hops import HopQueries

_MISSING = {"nodes": NO_NODE, "t": 0, "eid": -1}
"""What the slots without a neighbor hold."""


@dataclass(frozen=True, slots=True)
class HopHeader:
    """What an owner must know of a batch's queries before they come."""

    size: int
    k: int
    key: int
    """In [0, 2**64)."""
    limit: int
    """The cut-off for all, or the largest of the queries'."""
    num_columns: int
    """Nodes, times and rows; and where each query has a cut-off, those."""
    width: ClassVar[int] = 5

    @property
    def num_values(self) -> int:
        """Numbers of the queries."""
        return self.size * self.num_columns

    def vector(self, device: torch.device) -> Tensor:
        """Return it as int64 `[5]`."""
        key = self.key - 2**64 if self.key >= 2**63 else self.key
        values = [self.size, self.k, key, self.limit, self.num_columns]
        return torch.tensor(values, device=device)

    @classmethod
    def read(cls, vectors: Tensor) -> list[HopHeader]:
        """Return the headers of vectors, one after the other."""
        rows = vectors.view(-1, cls.width).tolist()
        return [cls(size, k, key % 2**64, *others) for size, k, key, *others in rows]


@dataclass(frozen=True, slots=True, eq=False)
class SentQueries:
    """A batch's queries, sorted by who owns their nodes. Padding is this rank's own."""

    asked: HopQueries
    limit: int
    order: Tensor
    """int64 `[Q]`: the row of each sorted query."""
    sizes: list[int]
    """Queries to each rank."""
    parts: list[Tensor]
    """To each rank, int64 `[C, size]`: nodes, times, rows, and cut-offs where there are any."""

    @classmethod
    def of(cls, asked: HopQueries, shard: Shard, position: int) -> SentQueries:
        """Sort the queries of a rank whose graph has `position` events."""
        nodes, as_of = asked.nodes, asked.as_of
        owner = torch.where(nodes < 0, shard.rank, shard.owner(nodes))
        order = owner.argsort(stable=True)
        sizes = owner.bincount(minlength=shard.world).tolist()
        columns = [nodes[order], asked.t[order], order]
        limit = position
        if isinstance(as_of, Tensor):
            columns.append(as_of[order].clamp(max=position))
            limit = max(columns[-1].tolist(), default=0)
        elif as_of is not None:
            limit = min(as_of, position)
        return cls(
            asked, limit, order, sizes, list(torch.split(torch.stack(columns), sizes, dim=1))
        )

    def header(self, rank: int) -> Tensor:
        """Return the header for a rank, int64 `[5]`."""
        columns, size = self.parts[rank].shape
        header = HopHeader(size, self.asked.k, self.asked.key, self.limit, columns)
        return header.vector(self.order.device)

    def queries(self, rank: int) -> Tensor:
        """Return the queries for a rank, int64 `[C * size]`, column by column."""
        return self.parts[rank].flatten()

    def answered(self, parts: list[tuple[Tensor, Tensor]]) -> Neighbors:
        """Return the neighbors, where they were asked for."""
        k, size, device = self.asked.k, len(self.order), self.order.device
        room = self.asked.out
        found = Neighbors.empty(size, k, device) if room is None else room
        count = torch.cat([count for count, _ in parts])
        filled = torch.cat([slots.view(len(_MISSING), -1) for _, slots in parts], dim=1)
        mask = torch.arange(k, device=device) < count.unsqueeze(1)
        for (name, missing), values in zip(_MISSING.items(), filled, strict=True):
            column: Tensor = getattr(found, name)
            rows = column.new_full((size, k), missing).masked_scatter_(mask, values)
            column.index_copy_(0, self.order, rows)
        found.count.index_copy_(0, self.order, count)
        return found


def filled_slots(found: Neighbors) -> Tensor:
    """Return nodes, times and events of the filled slots, int64 `[3 * F]`, column by column."""
    return torch.stack([getattr(found, name)[found.mask] for name in _MISSING]).flatten()
