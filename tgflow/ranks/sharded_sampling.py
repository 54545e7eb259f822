"""Sampling over a graph sharded by node: each hop queries the ranks that own the nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.base.keys import as_int64
from tgflow.base.peers import Peers, RanksDisagree, Shard
from tgflow.graph import Neighbors, TemporalGraph
from tgflow.graph.events import NO_NODE
from tgflow.graph.sampling import sample_neighbors
from tgflow.graph.sampling.hops import HopQueries, Hops, HopWalk
from tgflow.graph.strategies import Sampler
from tgflow.ranks.parcel import exchange_vectors

_MISSING = {"nodes": NO_NODE, "t": 0, "eid": -1}
"""Fill values of slots without a neighbor."""


class HopHeader(NamedTuple):
    """Sent to an owner before a batch's queries; int64 `[6]` when sent."""

    size: int
    k: int
    key: int
    """In [0, 2**64)."""
    limit: int
    """The cut-off shared by all queries, or the largest of theirs."""
    since: int
    """The first log position of the horizon."""
    num_columns: int
    """Columns sent per query: nodes, times and rows; and cut-offs where queries differ in them."""

    @classmethod
    def read(cls, vectors: Tensor) -> list[HopHeader]:
        """Return the headers in a sequence of vectors."""
        rows = vectors.view(-1, len(cls._fields)).tolist()
        return [cls(size, k, key % 2**64, *others) for size, k, key, *others in rows]


@dataclass(frozen=True, slots=True, eq=False)
class SentQueries:
    """A batch's queries, sorted by the owner of their nodes. Padding belongs to this rank."""

    asked: HopQueries
    limit: int
    order: Tensor
    """int64 `[Q]`: the row of each sorted query."""
    sizes: list[int]
    """Number of queries to each rank."""
    parts: list[Tensor]
    """Payload for each rank, int64 `[C, size]`: nodes, times, rows, and cut-offs, if any."""

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
        """Return the header for a rank, int64 `[6]`."""
        (columns, size), key = self.parts[rank].shape, self.asked.key
        header = HopHeader(size, self.asked.k, as_int64(key), self.limit, self.asked.since, columns)
        return torch.tensor(header, device=self.order.device)

    def answered(self, parts: list[tuple[Tensor, Tensor]]) -> Neighbors:
        """Return the neighbors in the order of the queries."""
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


def _filled_slots(found: Neighbors) -> Tensor:
    """Return nodes, times and events of the filled slots, int64 `[3 * F]`, column by column."""
    return torch.stack([getattr(found, name)[found.mask] for name in _MISSING]).flatten()


class ShardedSampler:
    """Samples over all ranks' shards, with the results of one unsharded graph.

    A hop takes four exchanges, whatever the number of batches: query counts (48 bytes a batch),
    queries (24 bytes each, 32 with a cut-off each), neighbor counts (4 bytes a query), and
    neighbors (24 bytes a filled slot; padding is not sent). Draws are keyed by the requesting
    rank's batch and row, and cut-offs are log positions, so the owner's answer is the same as the
    requesting rank's, even if it has appended more.

    A collective: all ranks call it with one sampler, one thread each, with equal numbers of batches
    and hops. Synchronizes with a device.
    """

    def __init__(
        self,
        graph: TemporalGraph,
        peers: Peers,
        sampler: Sampler,
        *,
        relations: Collection[int] | None = None,
    ) -> None:
        if graph.shard != peers.shard:
            raise ValueError(
                f"the graph is {graph.shard}, and this rank owns {peers.shard}; "
                "make it with TemporalGraph(shard=peers.shard)"
            )
        self._graph, self._peers = graph, peers
        self._sampler, self._relations = sampler, relations

    def walk(self, walks: Iterable[HopWalk]) -> list[Hops]:
        """Return the hops of each batch; all batches advance hop by hop together.

        A rank with fewer batches adds walks from empty frontiers. Raises PeerLost, and
        RanksDisagree if a rank's query needs events that this one has not appended.
        """
        walks = list(walks)
        steps = [_step(walk) for walk in walks]
        while asked := [step for step in steps if isinstance(step, HopQueries)]:
            answers = self.sample(asked)
            steps = list(starmap(_step, zip(walks, answers, strict=True)))
        return [step for step in steps if isinstance(step, Hops)]

    def sample(self, asked: Sequence[HopQueries]) -> list[Neighbors]:
        """Return the neighbors of the queries of several batches: one hop of each."""
        graph, ranks = self._graph, range(self._peers.world)
        sent = [SentQueries.of(each, self._peers.shard, graph.num_events) for each in asked]
        exchanged = partial(exchange_vectors, self._peers)
        headers = exchanged(
            [torch.cat([each.header(rank) for each in sent]) for rank in ranks],
            [len(sent) * len(HopHeader._fields) for _ in ranks],
            kind="queries",
        )
        requests = [HopHeader.read(header) for header in headers]
        self._check(requests)
        sizes = [[each.size * each.num_columns for each in rank] for rank in requests]
        queries = exchanged(
            [torch.cat([each.parts[rank].flatten() for each in sent]) for rank in ranks],
            [sum(each) for each in sizes],
            kind="queries",
        )
        found = [
            list(map(self._answer, requests[rank], torch.split(queries[rank], sizes[rank])))
            for rank in ranks
        ]
        counts = exchanged(
            [torch.cat([answer.count for answer in rank]) for rank in found],
            [sum(each.sizes[rank] for each in sent) for rank in ranks],
            kind="answers",
        )
        slots = exchanged(
            [torch.cat([_filled_slots(answer) for answer in rank]) for rank in found],
            [3 * int(count.sum()) for count in counts],
            kind="answers",
        )
        return _received(sent, counts, slots)

    def _check(self, requests: list[list[HopHeader]]) -> None:
        """Raise if queries need events that are not appended here yet."""
        for rank, headers in enumerate(requests):
            limit = max((header.limit for header in headers), default=0)
            if limit > self._graph.num_events:
                raise RanksDisagree(
                    f"rank {rank} requested neighbors as of {limit} events, but rank "
                    f"{self._peers.rank} has appended {self._graph.num_events}; all ranks must "
                    "append the same events before they sample"
                )

    def _answer(self, header: HopHeader, values: Tensor) -> Neighbors:
        nodes, t, rows, *limits = values.view(header.num_columns, header.size)
        return sample_neighbors(
            self._graph, self._sampler, nodes, t, header.k, key=header.key, rows=rows,
            as_of=limits[0] if limits else header.limit, since=header.since,
            relations=self._relations,
        )  # fmt: skip


def _step(walk: HopWalk, answer: Neighbors | None = None) -> HopQueries | Hops:
    """Pass its results to a walk; return its next queries, or its final hops."""
    try:
        return next(walk) if answer is None else walk.send(answer)
    except StopIteration as end:
        hops: Hops = end.value
        return hops


def _received(
    sent: list[SentQueries], counts: list[Tensor], slots: list[Tensor]
) -> list[Neighbors]:
    """Return each batch's answers from the payloads of all ranks."""
    of_ranks = []
    for rank, (count, slot) in enumerate(zip(counts, slots, strict=True)):
        parts = torch.split(count, [each.sizes[rank] for each in sent])
        sizes = [3 * int(part.sum()) for part in parts]
        of_ranks.append(zip(parts, torch.split(slot, sizes), strict=True))
    return [each.answered(parts) for each, *parts in zip(sent, *of_ranks, strict=True)]
