"""A node memory sharded over ranks by node; each rank fetches the other rows that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tgflow.base.describe import described
from tgflow.base.peers import PARTS, Peers, Shard
from tgflow.graph.batch import Batch
from tgflow.graph.sampling.expand import Frontier, distinct
from tgflow.nn.history import NODE
from tgflow.nn.memory import (
    CLOCK_WIDTH,
    HISTORY,
    NODES,
    POSITION,
    MemoryRows,
    NodeMemory,
    merge_parts,
    num_nodes_in,
)
from tgflow.ranks.parcel import exchange_parcels, exchange_vectors

_QUERIES = "memory queries"
"""The kind of `Traffic` of row requests."""


@dataclass(frozen=True, slots=True, eq=False)
class WantedRows:
    """Rows of a micro-batch that this rank requests, and those that other ranks request from it.

    Rows are distinct pairs of a node and the log position to read it at, int64 `[2, U]`.
    """

    queries: Sequence[Tensor]
    """Rows that this rank requests from each rank."""
    asked: Sequence[Tensor]
    """Rows that each rank requests from this one."""

    def place(self, nodes: Tensor, position: Tensor) -> Tensor:
        """Return the index of each (node, position) among this rank's requests, int64 `[Q]`."""
        every = torch.cat([*self.queries, torch.stack([nodes, position])], dim=1)
        known = every.shape[1] - len(nodes)
        place = distinct(Frontier(*every), None)[1][known:]
        strange = (place >= known).nonzero()
        if len(strange):
            node, row = int(nodes[strange[0]]), int(strange[0])
            raise ValueError(
                f"node {node} is with rank {Shard(0, len(self.asked)).owner(node)}, which was not "
                f"asked for it as of position {int(position[row])}: a sharded memory reads only "
                "the rows requested for the micro-batch, see request_rows"
            )
        return place


def request_rows(peers: Peers, micro_batches: Sequence[Iterable[Batch]]) -> list[WantedRows]:
    """Send the owners the requests for rows of their memory."""
    wanted = [_by_owner(peers.shard, batches) for batches in micro_batches]
    ranks = range(peers.world)
    counts = exchange_vectors(
        peers,
        [torch.tensor([each[rank].numel() for each in wanted]).long() for rank in ranks],
        [len(wanted) for _ in ranks],
        kind=_QUERIES,
    )
    sizes = [count.tolist() for count in counts]
    nothing = torch.empty(0, dtype=torch.int64)
    asked = exchange_vectors(
        peers,
        [torch.cat([nothing, *(each[rank].flatten() for each in wanted)]) for rank in ranks],
        [sum(each) for each in sizes],
        kind=_QUERIES,
    )
    parts = [torch.split(flat, each) for flat, each in zip(asked, sizes, strict=True)]
    return [
        WantedRows(queries, [part[number].view(2, -1) for part in parts])
        for number, queries in enumerate(wanted)
    ]


def _by_owner(shard: Shard, batches: Iterable[Batch]) -> Sequence[Tensor]:
    """Return the distinct rows that batches read, those of each rank in order of appearance."""
    nothing = torch.empty(2, 0, dtype=torch.int64)
    read = [torch.stack([batch.nodes, batch.position]) for batch in batches]
    rows = distinct(Frontier(*torch.cat([nothing, *read], dim=1)), None)[0]
    owner = shard.owner(rows.nodes)
    sizes = owner.bincount(minlength=shard.world).tolist()
    return torch.split(torch.stack([rows.nodes, rows.t])[:, owner.argsort(stable=True)], sizes, 1)


KIND = "memory"
"""The kind of `Traffic` of fetched headers; rows and clocks count under their names."""
_ROWS, _CLOCK = "memory rows", "memory clocks"
_LAST = "last"


@described
class ShardedMemory(nn.Module):
    """The memory rows of a rank's own nodes; same bits as one unsharded memory.

    Replaces a model's `NodeMemory`: `fetch` gets the rows that the slices of a micro-batch read, in
    one exchange; `read` returns them, and `write`, called with the rows of all nodes, stores this
    rank's own. Written rows of other nodes may hold anything.

    Each owner answers as of the requested positions, from its history if a row was written since:
    the history of a node depends on the log alone. Rows are on the CPU.

    Args:
        memory: Empty memory; it holds the rows of this rank's nodes, by local ids.
        peers: The ranks.

    Raises:
        ValueError: If `memory` has nodes already, or is on a device.

    Example:
        >>> peers = tg.join()
        >>> model.state = tg.ranks.ShardedMemory(model.state, peers)
        >>> trainer = tg.ContinualTrainer(model, tg.TemporalGraph(), peers=peers)
        >>> trainer.run([events])["num_events"]
        4
    """

    def __init__(self, memory: NodeMemory, peers: Peers) -> None:
        super().__init__()
        if memory.num_nodes > 0:
            raise ValueError(
                f"the memory has {memory.num_nodes} nodes already; make it sharded first, then "
                "load their state"
            )
        if not memory.clock.is_cpu:
            raise ValueError(
                f"a sharded memory must be on the CPU, got {memory.clock.device}; use a replicated "
                "memory, or a model on the CPU"
            )
        self.owned = memory
        """The rows of this rank's nodes, by `Shard.local`."""
        self._peers = peers
        self._shard = peers.shard
        self.num_nodes = 0
        """The largest node written so far on any rank since start or resume, plus one; of loaded
        state, on this rank."""
        self._position = 0
        self._num_fetched = 0
        self._wanted: WantedRows | None = None
        self._rows = MemoryRows(torch.empty(0, 0), torch.empty(0, 0), memory.dim)

    def _facts(self) -> dict[str, object]:
        return {"num_nodes": self.num_nodes, "num_rows": self.num_rows, "shard": self._shard}

    @property
    def num_rows(self) -> int:
        """Rows that this rank holds: one for each of its nodes, and the overwritten ones."""
        return self.owned.num_rows

    @property
    def num_forgotten(self) -> int:
        """Nodes of this rank that have no row any more."""
        return self.owned.num_forgotten

    def keep_past(self, num_events: int) -> None:
        """Keep the rows that the last `num_events` events have overwritten. See `NodeMemory`."""
        self.owned.keep_past(num_events)
        self._note_write()

    def _note_write(self) -> None:
        """Record the last write, of any nodes, in the history."""
        history = self.owned.history
        if history is not None:
            nothing = torch.empty(0, dtype=torch.int64)
            empty = history.rows[:0], history.clock[:0]
            history.append(nothing, nothing, *empty, self._position)

    def reset(self) -> None:
        """Reset all rows and the history; the nodes stay."""
        self.owned.reset()
        self._position, self._wanted = 0, None

    def forget(self, first: int, tick: int) -> None:
        """Forget this rank's nodes without a later event. See `PartedState`."""
        self.owned.forget(first, tick)

    def ask(self, micro_batches: Sequence[Iterable[Batch]]) -> list[Callable[[], None]]:
        """Send the owners the requests for rows. See `SpreadState.ask`, and `request_rows`."""
        return [partial(self.fetch, wanted) for wanted in request_rows(self._peers, micro_batches)]

    def fetch(self, wanted: WantedRows) -> None:
        """Fetch the rows `wanted` by a micro-batch (`request_rows`); nothing if they are already
        here.

        A collective, called once everything before the micro-batch is stored: one exchange in the
        group "train", of 4 * (dim + mail_dim) + 32 bytes a row. Raises PeerLost, RanksDisagree if a
        rank fetches another micro-batch or has rows of other widths, and ValueError if one reads an
        older version, and no history is kept.
        """
        if wanted is self._wanted:
            return
        found = [self._answer(asked) for asked in wanted.asked]
        width = self.owned.table.dim
        arrived = exchange_parcels(
            self._peers,
            KIND,
            self._num_fetched,
            [{_ROWS: each.state, _CLOCK: each.clock} for each in found],
            [
                {
                    _ROWS: (torch.float32, (each.shape[1], width)),
                    _CLOCK: (torch.int64, (each.shape[1], CLOCK_WIDTH)),
                }
                for each in wanted.queries
            ],
        )
        rows, clock = (torch.cat([each[name] for each in arrived]) for name in (_ROWS, _CLOCK))
        self._rows = MemoryRows(rows, clock, self.owned.dim)
        self._wanted = wanted
        self._num_fetched += 1

    def _answer(self, asked: Tensor) -> MemoryRows:
        nodes, position = asked
        local = self._shard.local(nodes)
        with self.owned.covering(int(local.max()) + 1 if len(local) else 0):
            return self.owned.read(local, position)

    def read(self, nodes: Tensor, position: Tensor, since: Tensor | None = None) -> MemoryRows:
        """Return the fetched rows of any nodes as of log positions; see `NodeMemory.read`.

        Raises ValueError if a row was not fetched since the last write.
        """
        if self._wanted is None:
            raise ValueError(
                "the rows of a sharded memory must be fetched before each micro-batch: "
                "request_rows, then fetch"
            )
        place = self._wanted.place(nodes, position)
        return MemoryRows(
            self._rows.state.index_select(0, place),
            self._rows.clock.index_select(0, place),
            self.owned.dim,
        ).within(since)

    def write(
        self,
        nodes: Tensor,
        memory: Tensor,
        last_update: Tensor,
        mail: Tensor,
        mail_t: Tensor,
        position: int,
        is_last: Tensor | None = None,
    ) -> None:
        """Write a new version of the rows of nodes that this rank owns, of those written on any
        rank.
        """
        self._wanted = None
        if len(nodes):
            self.num_nodes = max(self.num_nodes, int(nodes.max()) + 1)
            self.owned.resize(self._shard.count(self.num_nodes))
        own = self._shard.owns(nodes).nonzero().squeeze(1)
        self.owned.write(
            self._shard.local(nodes.index_select(0, own)),
            memory.index_select(0, own),
            last_update.index_select(0, own),
            mail.index_select(0, own),
            mail_t.index_select(0, own),
            position,
        )
        self._position = position

    def state_dict(  # type: ignore[override]
        self, *, destination: dict[str, Any] | None = None, **_: Any
    ) -> dict[str, Tensor]:
        """Return the state of this rank for `load_state_dict`; empty for that of a model.

        Ids in it are this rank's local ones.
        """
        return self.frozen()() if destination is None else destination

    def frozen(self) -> Callable[[], dict[str, Tensor]]:
        """Return a function that returns `state_dict` as of now, once."""
        take, last = self.owned.frozen(), torch.tensor([self.num_nodes, self._position])
        return lambda: take() | {_LAST: last}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        """Load the state of this rank of an equally large world, or its nodes' from a `NodeMemory`.

        Changes nothing if it raises: KeyError if a tensor is missing, ValueError for other widths.
        """
        if _LAST not in state:
            whole = NodeMemory(self.owned.dim, self.owned.mail_dim)
            whole.load_state_dict(state)
            self.load_parted(whole.parted())
            return
        num_nodes, position = state[_LAST].tolist()
        self.owned.load_state_dict({name: x for name, x in state.items() if name != _LAST})
        self.num_nodes, self._position, self._wanted = num_nodes, position, None

    def parted(self) -> Callable[[int], dict[str, Tensor]]:
        """Return a function of the tensors of each part of this rank (see `PartedState`);
        ValueError for a part of another rank.
        """
        take, parts = self.owned.parted(len(self._shard.parts)), self._shard.parts

        def part_of(part: int) -> dict[str, Tensor]:
            if part not in parts:
                raise ValueError(
                    f"part {part} of the memory belongs to rank {self._shard.owner(part)}: each "
                    "rank saves its own parts, to a Checkpoint of its shard"
                )
            return self._moved(take(part - parts.start), self._shard.ids)

        return part_of

    def load_parted(self, read: Callable[[int], Mapping[str, Tensor]]) -> None:
        """Load this rank's part of the state saved by ranks of any world. See `PartedState`.

        Parts of other ranks are read only if no history has the last position. Raises as
        `load_state_dict`, and ValueError if the parts do not fit each other.
        """
        own = [self._moved(read(part), self._shard.local) for part in self._shard.parts]
        whole = merge_parts(own)
        num_own = num_nodes_in(whole)
        num_nodes = int(self._shard.ids(torch.tensor(num_own - 1))) + 1 if num_own else 0
        position = (
            int(whole[HISTORY + "events"][0])
            if HISTORY + "events" in whole
            else max(_last_position(read(part)["clock"]) for part in range(PARTS))
        )
        self.load_state_dict(whole | {_LAST: torch.tensor([num_nodes, position])})

    @staticmethod
    def _moved(state: Mapping[str, Tensor], ids: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Return the state of a part with other ids of its nodes."""
        name, moved = HISTORY + "origin", dict(state)
        if name in moved:
            moved[name] = moved[name].clone()
            moved[name][:, NODE] = ids(moved[name][:, NODE])
        if NODES in moved:
            moved[NODES] = ids(moved[NODES])
        return moved


def _last_position(clock: Tensor) -> int:
    """Return the position of the latest write to any of some nodes; 0 without nodes."""
    return int(clock[:, POSITION].max()) if len(clock) else 0
