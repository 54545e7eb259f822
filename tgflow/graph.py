"""A temporal graph that grows: event log, block store and features as one thing to append to."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from tgflow import _core
from tgflow.events import EventBatch
from tgflow.log import Columns, EventLog
from tgflow.tables import FeatureTable

if TYPE_CHECKING:
    from tgflow.cuda.graph import DeviceGraph
    from tgflow.cuda.machine import Machine

Direction = Literal["undirected", "directed", "bipartite"]

_LEAST_BUDGET = 4096
_OLDEST = -(2**63)
_EVERYTHING = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TierStats:
    """What one tier of the block store holds."""

    name: str
    """"device" holds recent blocks, "host" older ones; without a budget all are in one tier."""
    num_blocks: int
    slack: float
    """Share of the blocks' room that is unused."""
    bytes: int
    """Memory of the tier's blocks, with what waits for reuse."""
    hit_share: float
    """Share of the neighbours sampled so far that came from this tier."""


@dataclass(frozen=True, slots=True)
class GraphStats:
    """What the block store holds and what it costs."""

    num_entries: int
    """Neighbours: two an event, one for self-loops and in directed graphs."""
    num_blocks: int
    max_blocks: int
    """Blocks of the node that has most."""
    slack: float
    """Share of the blocks' room that is unused."""
    bytes: int
    """All memory of the store: blocks, directories, heads, and what waits for reuse."""
    tiers: tuple[TierStats, ...]
    """The same of each tier, upper first."""


class TemporalGraph:
    """Timed edges and who is whose neighbour at any time.

    Any number of threads may sample and read while one appends: they see the graph as it was at
    `num_events`, the snapshot, which moves when an append is complete.

    With `device="cuda"` the neighbourhoods are in the GPU's memory, and samplers take and return
    tensors there; the log stays on the host. Answers are the same to the last bit.

    Args:
        direction: "undirected": both ends of an event are each other's neighbours, and a self-loop
            counts once. "directed": `dst` is a neighbour of `src` only. "bipartite": as undirected,
            and a node is a source or a destination but never both.
        edge_x_dim: Width of the events' features, 0 without.
        device: "cpu", "cuda" or "cuda:1"; or any `tgflow.cuda.machine.Machine`.
        device_budget: Bytes, or text such as "8GB", that recent blocks may take; where they would
            take more, the oldest ones move to host memory, and answers stay the same. On the CPU
            both tiers are host memory, which serves to try out what a GPU would do. None: no limit.

    Raises:
        CudaError: If the GPU cannot be used; the message says what is missing.
        ValueError: If an argument is none of these, or the budget is below 4 KB.
    """

    def __init__(
        self,
        direction: Direction = "undirected",
        edge_x_dim: int = 0,
        *,
        device: str | torch.device | Machine = "cpu",
        device_budget: int | str | None = None,
    ) -> None:
        if direction not in ("undirected", "directed", "bipartite"):
            raise ValueError(
                f"direction must be 'undirected', 'directed' or 'bipartite', got {direction!r}"
            )
        self.direction: Direction = direction
        self.device_budget = None if device_budget is None else num_bytes(device_budget)
        if self.device_budget is not None and self.device_budget < _LEAST_BUDGET:
            raise ValueError(
                f"device_budget must be at least {_LEAST_BUDGET} bytes, got {device_budget!r}"
            )
        self._native, self.device = _open(
            getattr(_core.Direction, direction),
            2**63 - 1 if self.device_budget is None else self.device_budget,
            device,
        )
        """The graph in the core or on a GPU; where samplers take and return tensors."""
        self.log = EventLog._of_graph(self._native)
        self.edge_x = FeatureTable(edge_x_dim) if edge_x_dim else None
        self._appending = threading.Lock()

    @classmethod
    def from_events(
        cls,
        events: EventBatch,
        direction: Direction = "undirected",
        *,
        device: str | torch.device | Machine = "cpu",
        device_budget: int | str | None = None,
    ) -> TemporalGraph:
        """Return a graph of `events`, with their features if they have any."""
        graph = cls(direction, events.x_dim, device=device, device_budget=device_budget)
        graph.append(events)
        return graph

    def append(self, events: EventBatch, *, insert_late: bool = False) -> int:
        """Add `events`, all or none of them, and return the first one's position.

        Args:
            events: Events in the order of their times.
            insert_late: Accept a batch that begins before the latest time so far: its events follow
                in the log and are merged into their nodes' pasts by time, where cut-offs from the
                batch's end on see them. Slow; a reorder buffer is the usual way.

        Raises:
            MemoryError: If a tier has no room; the message says how many bytes were asked for.
            ValueError: If a time is earlier than the one before it, a node id is too large, a node
                is on both sides of a bipartite graph, or features or labels do not fit the graph's.
        """
        columns = Columns(events)
        with self._appending:
            self._check_x(events)
            if self.edge_x is None or events.x is None:
                return self._native.append(*columns.addresses, insert_late)
            self._native.check(*columns.addresses, insert_late)
            first = self.edge_x.append(events.x)  # before anyone can ask for them
            try:
                return self._native.append(*columns.addresses, insert_late)
            except BaseException:
                self.edge_x.truncate(first)
                raise

    def delete(self, eid: Tensor) -> int:
        """Take events out of their nodes' neighbourhoods; the log keeps its rows.

        As every change of the past, it is seen by cut-offs from `num_events`, as it is now, on:
        earlier cut-offs see the graph as it was, until `compact`. Readers see all of it or nothing.

        Args:
            eid: Log positions, int64 `[N]`. What is deleted already is passed over.

        Returns:
            How many neighbours are gone: two an event, one for self-loops and in directed graphs.

        Raises:
            IndexError: If the log does not hold one of the events.
            MemoryError: If there is no room for the changed blocks; nothing is changed then.
            ValueError: If `eid` has another dtype or shape.
        """
        if eid.dtype != torch.int64 or eid.dim() != 1:
            raise ValueError(f"eid must be int64 [N], got {eid.dtype} {list(eid.shape)}")
        eid = eid.cpu().contiguous()
        return self._native.remove(eid.data_ptr(), len(eid))

    def delete_pair(self, src: int, dst: int) -> int:
        """Delete every event from `src` to `dst`, and back unless directed; as `delete`."""
        return self._native.remove_pair(src, dst)

    def delete_node(self, node: int) -> int:
        """Delete every event of `node`; as `delete`. Reads the whole log."""
        return self._native.remove_node(node)

    def retain(self, *, max_age: int | None = None, max_count: int | None = None) -> int:
        """Forget old neighbours of every node, exactly; seen from `num_events` on, as `delete`.

        Args:
            max_age: Forget what is more ticks older than the latest event.
            max_count: Keep this many of each node's latest neighbours.

        Returns:
            How many neighbours are gone.

        Raises:
            MemoryError: If there is no room for the changed blocks; nothing is changed then.
            ValueError: If neither or a negative one is given.
        """
        limits = [limit for limit in (max_age, max_count) if limit is not None]
        if not limits or min(limits) < 0:
            raise ValueError(
                "retain needs max_age or max_count, at least 0, "
                f"got max_age={max_age}, max_count={max_count}"
            )
        t_last = self.log.t_last
        if t_last is None:
            return 0
        min_t = _OLDEST if max_age is None else max(_OLDEST, t_last - max_age)
        return self._native.retain(min_t, _EVERYTHING if max_count is None else max_count)

    def compact(self) -> None:
        """Give memory back: what only cut-offs before the latest changes see, and sparse chunks.

        An earlier cut-off then sees what the changes have left of what it saw; of a node into whose
        past events were merged late, it sees nothing. Sampling goes on meanwhile.

        Raises:
            MemoryError: If there is no room to move blocks to; nothing that is to stay is lost.
        """
        self._native.compact()

    def _check_x(self, events: EventBatch) -> None:
        dim = 0 if self.edge_x is None else self.edge_x.dim
        if events.x_dim != dim and (len(events) or events.x is not None):
            raise ValueError(
                f"the graph has edge features of width {dim}, the batch has {events.x_dim}; "
                "create the graph with TemporalGraph(edge_x_dim=...)"
            )

    @property
    def num_nodes(self) -> int:
        """The largest node id so far plus one."""
        return self.log.num_nodes

    @property
    def num_events(self) -> int:
        """Events in the current snapshot: what samplers see unless given an earlier `before`."""
        return self._native.position

    def stats(self) -> GraphStats:
        """Return the block store's size and cost. Waits for an append in progress."""
        stats = self._native.stats()
        tiers = [stats.upper] if self.device_budget is None else [stats.upper, stats.lower]
        return GraphStats(
            num_entries=stats.num_entries,
            num_blocks=sum(tier.num_blocks for tier in tiers),
            max_blocks=stats.max_blocks,
            slack=_unused(stats.num_entries, sum(tier.capacity for tier in tiers)),
            bytes=stats.bytes,
            tiers=tuple(
                TierStats(
                    name,
                    tier.num_blocks,
                    _unused(tier.num_entries, tier.capacity),
                    tier.bytes,
                    hits / max(1, sum(stats.reads)) if len(tiers) > 1 else 1.0,
                )
                for name, tier, hits in zip(("device", "host"), tiers, stats.reads, strict=False)
            ),
        )


def _open(
    direction: _core.Direction, budget: int, device: str | torch.device | Machine
) -> tuple[_core.TemporalGraph | DeviceGraph, torch.device]:
    """Return a graph on `device`, and where that is."""
    from tgflow.cuda.graph import DeviceGraph
    from tgflow.cuda.machine import CudaMachine

    if isinstance(device, str | torch.device):
        kind = str(device).partition(":")[0]
        if kind not in ("cpu", "cuda"):
            raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {str(device)!r}")
        if kind == "cpu":
            return _core.TemporalGraph(direction, budget), torch.device("cpu")
        device = CudaMachine(torch.device(device))
    return DeviceGraph(direction, budget, device), device.device


def _unused(num_entries: int, capacity: int) -> float:
    return 1 - num_entries / capacity if capacity else 0.0


def num_bytes(size: int | str) -> int:
    """Return a size in bytes: a number, or text such as "512MB", "8 GB" or "1.5GiB".

    Raises:
        ValueError: If it is none of these, or negative.
    """
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"a size in bytes is at least 0, got {size}")
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", size, re.IGNORECASE)
    if match is None:
        raise ValueError(f"a size is bytes or text such as '512MB' or '8GB', got {size!r}")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))
