"""What each rank computes and sends for a batch: arithmetic over its slices, without a world.

Who computes which rows and who owns which ids is known from the beginning, so what has to travel is
known too, to the byte, on one process and for any world.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.distributed.hop_parcel import HopHeader
from tgflow.distributed.reduce import GRADIENT, chunk_sizes
from tgflow.messages import Messages
from tgflow.peers import PARTS, Shard
from tgflow.schedule import SliceSchedule
from tgflow.share import Share
from tgflow.tree_sum import subtrees

_INT64, _INT32, _FLOAT32 = 8, 4, 4
_SLOT_BYTES = 3 * _INT64
"""Of a neighbor: its node, its time and its event."""


@dataclass(frozen=True, slots=True)
class Widths:
    """What of a model and its stream travels, and how wide it is."""

    leaf: int
    """Numbers that a slice adds to the batch's sum; see `tgflow.train.leaves`. 0: none is added."""
    leaf_bytes: int
    """Of such a number."""
    messages: Messages | None
    """What any slice left for the model's state: its columns say how wide a row is."""
    memory: int
    """Bytes of a node's memory, 0 without."""
    edge: int
    """Bytes of an event's features, 0 without."""
    event: int
    """Bytes of an event as rank 0 sends it to the others, features included."""
    with_cut_offs: bool
    """Whether each query for neighbors has a cut-off of its own."""

    @property
    def message(self) -> int:
        """Bytes of a row of messages."""
        columns = () if self.messages is None else self.messages.columns
        return sum(column[:1].nbytes for column in columns)


@dataclass(slots=True, eq=False)
class RankCosts:
    """Adds up what each rank of a world computes and sends, batch by batch.

    Args:
        schedule: Who computes which slices.
        widths: What travels.
    """

    schedule: SliceSchedule
    widths: Widths
    loads: dict[str, Tensor] = field(default_factory=dict)
    """By what there is to do, int64 `[world]`: `rows` of batches, `queries` for neighbors, `inputs`
    (distinct rows of memory or features), and `edges` (distinct rows of edge features)."""
    sent: dict[str, Tensor] = field(default_factory=dict)
    """Bytes to other ranks by kind, int64 `[world]`.

    Always: `gradient`, `scores` and, by rank 0, `feed`. Where every rank has all of the memory:
    `rows`, else `memory read` and `memory stored`. Where the graph is in shards: `queries` and
    `answers`. Where edge features are: `edge rows`, with what asks for them.
    """

    @property
    def world(self) -> int:
        """How many ranks."""
        return self.schedule.world

    def predicted(self, share: Share) -> None:
        """Add what all slices of a batch cost that is predicted."""
        self._add_common(share)
        new = share.num_new * self.widths.event * (self.world - 1)
        self._to(self.sent, "feed", 0, new)

    def learned(self, share: Share) -> None:
        """Add what all slices of a batch cost that is learned."""
        self._add_common(share)
        for rank, num_bytes in enumerate(gradient_bytes(self.schedule, self.widths)):
            self._to(self.sent, GRADIENT, rank, num_bytes)

    def stored(self, share: Share) -> None:
        """Add what it costs to store the new events of a batch in the model's state."""
        messages = self.widths.messages
        if messages is None:
            return
        read = messages.rows_read(share.host, share.num_new)
        receivers = _receivers(share, read, messages.per_event)
        for rank, number in self._slices():
            new, width = share.new_rows_of(number), messages.per_event
            mine = (read >= width * new.start) & (read < width * new.stop)
            num_bytes = int(mine.sum()) * self.widths.message
            self._to(self.sent, "rows", rank, num_bytes * (self.world - 1))
            if self.widths.memory and receivers is not None:
                remote = self._remote(receivers[mine], rank)
                self._to(self.sent, "memory stored", rank, remote * self.widths.message)

    def _add_common(self, share: Share) -> None:
        """Add what a batch costs, whatever becomes of it."""
        for rank, number in self._slices():
            self._add_slice(rank, share.slices[number])
        if self.world > 1:
            walks = max(len(self.schedule.slices_of(rank)) for rank in range(self.world))
            headers = walks * HopHeader.width * _INT64 * len(share.slices[0].blocks)
            for rank in range(self.world):
                self._to(self.sent, "queries", rank, headers * (self.world - 1))

    def _add_slice(self, rank: int, batch: Batch) -> None:
        self._to(self.loads, "rows", rank, len(batch))
        self._to(self.loads, "inputs", rank, len(batch.nodes))
        num_scores = len(batch) + batch.negative_dst.numel()
        self._to(self.sent, "scores", rank, num_scores * _FLOAT32 if rank else 0)
        self._add_queries(rank, batch)
        self._add_remote_inputs(rank, batch)
        self._add_remote_edges(rank, batch)

    def _add_queries(self, rank: int, batch: Batch) -> None:
        """Add what a slice asks the owners of nodes, and what they answer."""
        columns = 4 if self.widths.with_cut_offs else 3
        nodes = batch.nodes
        for block in reversed(batch.blocks):
            nodes = nodes.index_select(0, block.target)
            self._to(self.loads, "queries", rank, len(nodes))
            owner, filled = self._owner(nodes), block.mask.sum(1)
            asked = owner.bincount(minlength=self.world)
            found = torch.zeros_like(asked).index_add_(0, owner, filled)
            asked[rank] = found[rank] = 0
            self._to(self.sent, "queries", rank, int(asked.sum()) * columns * _INT64)
            self._add(self.sent, "answers", asked * _INT32 + found * _SLOT_BYTES)

    def _add_remote_inputs(self, rank: int, batch: Batch) -> None:
        """Add the rows of memory that a slice reads of other ranks, which send them unasked."""
        if self.widths.memory:
            by_owner = self._owner(batch.nodes).bincount(minlength=self.world)
            by_owner[rank] = 0
            self._add(self.sent, "memory read", by_owner * self.widths.memory)

    def _add_remote_edges(self, rank: int, batch: Batch) -> None:
        """Add the edge features that a slice reads of other ranks, and the ids that ask for them.

        Features are in stripes of as many events as there are parts.
        """
        read = torch.cat([batch.eid, *(block.eid[block.mask] for block in batch.blocks)])
        eids: Tensor = torch.unique(read)
        self._to(self.loads, "edges", rank, len(eids))
        if self.widths.edge:
            by_owner = self._owner(eids // PARTS).bincount(minlength=self.world)
            by_owner[rank] = 0
            self._add(self.sent, "edge rows", by_owner * self.widths.edge)
            self._to(self.sent, "edge rows", rank, int(by_owner.sum()) * _INT64)

    def _slices(self) -> Iterator[tuple[int, int]]:
        """Yield every slice with the rank that computes it."""
        for rank in range(self.world):
            for number in self.schedule.slices_of(rank):
                yield rank, number

    def _owner(self, ids: Tensor) -> Tensor:
        return Shard(0, self.world).owner(ids)

    def _remote(self, nodes: Tensor, rank: int) -> int:
        return int((self._owner(nodes) != rank).sum())

    def _to(self, totals: dict[str, Tensor], kind: str, rank: int, number: int) -> None:
        self._total(totals, kind)[rank] += number

    def _add(self, totals: dict[str, Tensor], kind: str, numbers: Tensor) -> None:
        self._total(totals, kind).add_(numbers)

    def _total(self, totals: dict[str, Tensor], kind: str) -> Tensor:
        return totals.setdefault(kind, torch.zeros(self.world, dtype=torch.int64))


def gradient_bytes(schedule: SliceSchedule, widths: Widths) -> list[int]:
    """Return what each rank sends of one batch's sum: see `tgflow.distributed.reduce`.

    With 4 P bytes of gradient it is about 2 * 4 P * (N - 1) / N for each of N ranks.
    """
    world = schedule.world
    sizes = chunk_sizes(widths.leaf, world)
    sent = []
    for rank in range(world):
        roots = len(subtrees(schedule.slices_of(rank), schedule.slices))
        elements = roots * (widths.leaf - sizes[rank]) + sizes[rank] * (world - 1)
        sent.append(elements * widths.leaf_bytes)
    return sent


def _receivers(share: Share, rows: Tensor, per_event: int) -> Tensor | None:
    """Return which node each row of messages is for; None where rows are of events."""
    if per_event != 2:
        return None
    n = share.num_new
    nodes = torch.stack([share.host.src[:n], share.host.dst[:n]], dim=1).flatten()
    return nodes.index_select(0, rows)
