"""Which rows of a sharded memory are read in a micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.distributed.parcel import exchange_vectors
from tgflow.peers import Peers, Shard
from tgflow.sampling.expand import Frontier, distinct

KIND = "memory queries"
"""What asking counts as in `Traffic`."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryQueries:
    """Distinct nodes, and as of which log position each is read."""

    nodes: Tensor
    """int64 `[U]`."""
    position: Tensor
    """int64 `[U]`."""

    def __len__(self) -> int:
        return len(self.nodes)

    def pairs(self) -> Tensor:
        """Return them as one vector, int64 `[2 * U]`."""
        return torch.cat([self.nodes, self.position])

    @classmethod
    def of_pairs(cls, pairs: Tensor) -> MemoryQueries:
        """Return what `pairs` came from."""
        return cls(*pairs.view(2, -1))


@dataclass(frozen=True, slots=True, eq=False)
class WantedRows:
    """The rows of a micro-batch that this rank reads, and those that each rank reads of it."""

    queries: list[MemoryQueries]
    """What this rank asks of each rank."""
    asked: list[MemoryQueries]
    """What each rank asks of this one."""

    def place(self, nodes: Tensor, position: Tensor) -> Tensor:
        """Return where each (node, position) is among this rank's queries, int64 `[Q]`."""
        known = sum(map(len, self.queries))
        every = Frontier(
            torch.cat([*(each.nodes for each in self.queries), nodes]),
            torch.cat([*(each.position for each in self.queries), position]),
        )
        place = distinct(every, None)[1][known:]
        strange = (place >= known).nonzero()
        if len(strange):
            node, row = int(nodes[strange[0]]), int(strange[0])
            raise ValueError(
                f"node {node} is with rank {Shard(0, len(self.asked)).owner(node)}, which was not "
                f"asked for it as of position {int(position[row])}: a sharded memory reads what "
                "was wanted of the micro-batch, see ask_rows"
            )
        return place


def ask_rows(peers: Peers, micro_batches: Sequence[Iterable[Batch]]) -> list[WantedRows]:
    """Let owners know which rows of their memory will be read."""
    wanted = [_by_owner(peers.shard, batches) for batches in micro_batches]
    ranks = range(peers.world)
    counts = exchange_vectors(
        peers,
        [torch.tensor([len(each[rank]) for each in wanted], dtype=torch.int64) for rank in ranks],
        [len(wanted) for _ in ranks],
        kind=KIND,
    )
    sizes = [[2 * size for size in count.tolist()] for count in counts]
    nothing = torch.empty(0, dtype=torch.int64)
    asked = exchange_vectors(
        peers,
        [torch.cat([nothing, *(each[rank].pairs() for each in wanted)]) for rank in ranks],
        [sum(each) for each in sizes],
        kind=KIND,
    )
    parts = [torch.split(flat, each) for flat, each in zip(asked, sizes, strict=True)]
    return [
        WantedRows(queries, [MemoryQueries.of_pairs(part[number]) for part in parts])
        for number, queries in enumerate(wanted)
    ]


def _by_owner(shard: Shard, batches: Iterable[Batch]) -> list[MemoryQueries]:
    """Return the distinct rows that batches read, those of each rank in order of appearance."""
    nothing = torch.empty(0, dtype=torch.int64)
    nodes, position = [nothing], [nothing]
    for batch in batches:
        nodes.append(batch.nodes)
        position.append(batch.position)
    rows = distinct(Frontier(torch.cat(nodes), torch.cat(position)), None)[0]
    owner = shard.owner(rows.nodes)
    order = owner.argsort(stable=True)
    sizes = owner.bincount(minlength=shard.world).tolist()
    columns = (torch.split(column[order], sizes) for column in (rows.nodes, rows.t))
    return [MemoryQueries(*pair) for pair in zip(*columns, strict=True)]
