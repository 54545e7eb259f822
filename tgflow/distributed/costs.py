"""What each rank computes and sends for a batch: arithmetic over its slices, without a world.

Who computes which rows and who owns which ids is known from the beginning, so what has to travel is
known too, to the byte, on one process and for any world.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.distributed.control import CHECKED_EVERY, FIGURES_SPEC, STEP
from tgflow.distributed.hop_parcel import HopHeader
from tgflow.distributed.parcel import Layout
from tgflow.distributed.reduce import GRADIENT, chunk_sizes
from tgflow.messages import Messages
from tgflow.nn.memory_rows import CLOCK_WIDTH
from tgflow.peers import Shard
from tgflow.sampling import Frontier
from tgflow.sampling.expand import distinct
from tgflow.schedule import SliceSchedule
from tgflow.share import Share
from tgflow.tables.stripes import Stripes
from tgflow.tree_sum import subtrees

_INT64, _INT32, _FLOAT32 = 8, 4, 4
_ENDS = 2
_FIGURES_BYTES = FIGURES_SPEC[1][0] * FIGURES_SPEC[0].itemsize
_CLOCK_BYTES = CLOCK_WIDTH * _INT64
_STORED = "memory stored"
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
    """Bytes of a node's memory and of its clock, 0 without."""
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
    """Adds up what each rank of a world computes and sends, micro-batch by micro-batch.

    Args:
        schedule: Who computes which slices.
        widths: What travels.
    """

    schedule: SliceSchedule
    widths: Widths
    loads: dict[str, list[int]] = field(default_factory=dict)
    """By what there is to do, of each rank: `rows` of batches, `queries` for neighbors, `inputs`
    (distinct rows of memory or features of each slice), and `edges` (those of edge features)."""
    sent: dict[str, list[int]] = field(default_factory=dict)
    """Bytes to other ranks by kind, of each rank.

    Always, in the parcel of an update: `gradient`, `scores`, `figures` and `order`, `lost`,
    `checksum`, and `step`, its headers; and `feed`, the columns that rank 0 sends. Where every rank
    has all of the memory: `rows`; else `memory queries`, `memory rows`, `memory clocks` and
    `memory`, their headers, `memory stored`, and `step, memory sharded` in place of `step`. Where
    the graph is in shards: `queries` and `answers`. Where edge features are: `edge rows`, with what
    asks for them. Where anything is: `turns`, at most, as micro-batches that come at once ask
    together.
    """
    num_parcels: int = 0

    @property
    def world(self) -> int:
        """How many ranks."""
        return self.schedule.world

    def add(self, predicted: Share, learned: Sequence[Share]) -> None:
        """Add what a micro-batch costs.

        Args:
            predicted: All slices of what is predicted.
            learned: Those of each update.
        """
        for share in (predicted, *learned):
            self._add_batch(share)
        self._add_edges([predicted, *learned])
        self._add_memory([predicted, *learned])
        for rank in range(self.world):
            self._to(self.sent, "turns", rank, _INT64 * (self.world - 1))
        self._to(self.sent, "feed", 0, predicted.num_new * self.widths.event * (self.world - 1))
        waiting = [predicted]  # its scores travel with the first update
        for share in learned:
            last = share is learned[-1]
            self._add_parcels([*waiting, share], stores=last, learns=True)
            waiting = []
        if waiting:
            self._add_parcels(waiting, stores=True, learns=False)

    def _add_batch(self, share: Share) -> None:
        """Add what a batch costs, whatever becomes of it."""
        for rank, number in self._slices():
            batch = share.slices[number]
            self._to(self.loads, "rows", rank, len(batch))
            self._to(self.loads, "inputs", rank, len(batch.nodes))
            self._add_queries(rank, batch)
            self._to(self.loads, "edges", rank, len(_events_read([batch])))
        walks = max(len(self.schedule.slices_of(rank)) for rank in range(self.world))
        headers = walks * HopHeader.width * _INT64 * len(share.slices[0].blocks)
        for rank in range(self.world):
            self._to(self.sent, "queries", rank, headers * (self.world - 1))

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

    def _add_edges(self, shares: Sequence[Share]) -> None:
        """Add the edge features that a micro-batch reads of other ranks: each once for a rank."""
        if not self.widths.edge:
            return
        for rank in range(self.world):
            read = _events_read([share.slices[n] for share in shares for n in self._numbers(rank)])
            by_owner = self._elsewhere(Stripes(Shard(rank, self.world)).owner(read), rank)
            self._add(self.sent, "edge rows", by_owner * self.widths.edge)
            self._to(self.sent, "edge rows", rank, int(by_owner.sum()) * _INT64)
            self._to(self.sent, "edge rows", rank, _INT64 * (self.world - 1))

    def _add_memory(self, shares: Sequence[Share]) -> None:
        """Add the rows of memory that a micro-batch reads of other ranks: each once for a rank."""
        if not self.widths.memory:
            return
        for rank in range(self.world):
            own = self.schedule.slices_of(rank)
            batches = [share.slices[number] for share in shares for number in own]
            nodes, position = (
                torch.cat([getattr(batch, name) for batch in batches])
                for name in ("nodes", "position")
            )
            rows = distinct(Frontier(nodes, position), None)[0]
            by_owner = self._remote(rows.nodes, rank)
            self._to(self.sent, "memory queries", rank, 2 * _INT64 * int(by_owner.sum()))
            self._to(self.sent, "memory queries", rank, _INT64 * (self.world - 1))
            row = self.widths.memory - _CLOCK_BYTES
            for owner, size in enumerate(by_owner.tolist()):
                if owner != rank:
                    sizes = {"memory rows": size * row, "memory clocks": size * _CLOCK_BYTES}
                    self._add_parcel(owner, sizes, "memory")

    def _add_parcels(self, scored: Sequence[Share], *, stores: bool, learns: bool) -> None:
        """Add the parcels that all ranks send each other.

        Args:
            scored: Whose scores are in them; the last one is what they are of.
            stores: Whether rows for the model's state are, too.
            learns: Whether gradients are.
        """
        ranks = range(self.world)
        rows = self._rows(scored[-1]) if stores else {}
        scores = [sum(self._score_bytes(share, rank) for share in scored) for rank in ranks]
        checked = self.num_parcels % CHECKED_EVERY == 0
        self.num_parcels += 1
        sums = gradient_parts(self.schedule, self.widths) if learns and self.widths.leaf else None
        for rank, other in product(ranks, ranks):
            if rank == other:
                continue
            sizes = {
                "lost": 1,
                "rows": rows["rows"][rank][other] if rows else None,
                "checksum": _INT64 if checked else None,
                GRADIENT: None if sums is None else sums[rank][other],
                "scores": scores[rank] if other == 0 else None,
                "figures": _FIGURES_BYTES if other == 0 else None,
                "order": _INT64 if rank == 0 else None,
            }
            there = {name: size for name, size in sizes.items() if size is not None}
            self._add_parcel(rank, there, STEP)
            if self.widths.memory:
                if _STORED in rows:
                    there["rows"] = rows[_STORED][rank][other]
                    self._to(self.sent, _STORED, rank, there["rows"])
                self._to(self.sent, f"{STEP}, memory sharded", rank, _headers(there))
        for rank, parts in enumerate(sums or ()):
            own = parts[rank] // len(subtrees(self.schedule.slices_of(rank), self.schedule.slices))
            self._to(self.sent, GRADIENT, rank, own * (self.world - 1))

    def _add_parcel(self, rank: int, sizes: Mapping[str, int], kind: str) -> None:
        for name, size in sizes.items():
            self._to(self.sent, name, rank, size)
        self._to(self.sent, kind, rank, _headers(sizes))

    def _score_bytes(self, share: Share, rank: int) -> int:
        width = 1 + share.slices[0].negative_dst.shape[1]
        return sum(len(share.rows_of(each)) for each in self._numbers(rank)) * width * _FLOAT32

    def _rows(self, share: Share) -> dict[str, list[list[int]]]:
        """Return the bytes of the rows that each rank's slices leave for the state, to each rank.

        Under `rows` as they are sent where every rank has all of the memory, under `memory stored`
        where they go to the owners of who receives them.
        """
        messages = self.widths.messages
        if messages is None:
            return {}
        read, width = messages.rows_read(share.host, share.num_new), messages.per_event
        receivers = _receivers(share, read) if width == _ENDS else None
        found: dict[str, list[list[int]]] = {"rows": []}
        for rank in range(self.world):
            slices = self._numbers(rank)
            first, stop = (share.new_rows_of(slices[0]).start, share.new_rows_of(slices[-1]).stop)
            mine = (read >= width * first) & (read < width * stop)
            found["rows"].append([int(mine.sum()) * self.widths.message] * self.world)
            if self.widths.memory and receivers is not None:
                by_owner = self._remote(receivers[mine], rank) * self.widths.message
                found.setdefault(_STORED, []).append(by_owner.tolist())
        return found

    def _numbers(self, rank: int) -> range:
        return self.schedule.slices_of(rank)

    def _slices(self) -> Iterator[tuple[int, int]]:
        """Yield every slice with the rank that computes it."""
        return ((rank, number) for rank in range(self.world) for number in self._numbers(rank))

    def _owner(self, ids: Tensor) -> Tensor:
        return Shard(0, self.world).owner(ids)

    def _remote(self, ids: Tensor, rank: int) -> Tensor:
        """Return how many of the ids each other rank owns, int64 `[world]`; 0 at `rank`."""
        return self._elsewhere(self._owner(ids), rank)

    def _elsewhere(self, owner: Tensor, rank: int) -> Tensor:
        by_owner = owner.bincount(minlength=self.world)
        by_owner[rank] = 0
        return by_owner

    def _to(self, totals: dict[str, list[int]], kind: str, rank: int, number: int) -> None:
        totals.setdefault(kind, [0] * self.world)[rank] += number

    def _add(self, totals: dict[str, list[int]], kind: str, numbers: Tensor) -> None:
        for rank, number in enumerate(numbers.tolist()):
            self._to(totals, kind, rank, number)


def gradient_parts(schedule: SliceSchedule, widths: Widths) -> list[list[int]]:
    """Return the bytes of one batch's sum that each rank sends to each: by sender, then receiver.

    A sender has a sum for each whole subtree of its slices; see `tgflow.distributed.reduce`.
    """
    sizes = chunk_sizes(widths.leaf, schedule.world)
    return [
        [len(subtrees(schedule.slices_of(rank), schedule.slices)) * size * widths.leaf_bytes
         for size in sizes]
        for rank in range(schedule.world)
    ]  # fmt: skip


def _headers(sizes: Mapping[str, int]) -> int:
    """Return the bytes of a parcel that are not those of its tensors."""
    return _parcel_bytes(tuple(sizes.values())) - sum(sizes.values())


@lru_cache
def _parcel_bytes(sizes: tuple[int, ...]) -> int:
    specs = {str(i): (torch.uint8, (size,)) for i, size in enumerate(sizes)}
    return Layout(STEP, specs).num_bytes


def _events_read(batches: Iterable[Batch]) -> Tensor:
    """Return the distinct events whose features batches read, int64."""
    read = [eid for batch in batches for eid in (batch.eid, *(b.eid[b.mask] for b in batch.blocks))]
    eids: Tensor = torch.unique(torch.cat(read))
    return eids


def _receivers(share: Share, rows: Tensor) -> Tensor:
    """Return which node each row of messages is for, of two rows an event."""
    n = share.num_new
    nodes = torch.stack([share.host.src[:n], share.host.dst[:n]], dim=1).flatten()
    return nodes.index_select(0, rows)
