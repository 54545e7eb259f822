"""A temporal graph that grows: event log, block store and features as one thing to append to."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from tgflow import _core
from tgflow.events import EventBatch
from tgflow.log import Columns, EventLog
from tgflow.tables import FeatureTable

Direction = Literal["undirected", "directed", "bipartite"]


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


class TemporalGraph:
    """Timed edges and who is whose neighbour at any time.

    Any number of threads may sample and read while one appends: they see the graph as it was at
    `num_events`, the snapshot, which moves when an append is complete.

    Args:
        direction: "undirected": both ends of an event are each other's neighbours, and a self-loop
            counts once. "directed": `dst` is a neighbour of `src` only. "bipartite": as undirected,
            and a node is a source or a destination but never both.
        edge_x_dim: Width of the events' features, 0 without.
    """

    def __init__(self, direction: Direction = "undirected", edge_x_dim: int = 0) -> None:
        if direction not in ("undirected", "directed", "bipartite"):
            raise ValueError(
                f"direction must be 'undirected', 'directed' or 'bipartite', got {direction!r}"
            )
        self.direction: Direction = direction
        self._native = _core.TemporalGraph(getattr(_core.Direction, direction))
        self.log = EventLog._of_graph(self._native)
        self.edge_x = FeatureTable(edge_x_dim) if edge_x_dim else None
        self._appending = threading.Lock()

    @classmethod
    def from_events(cls, events: EventBatch, direction: Direction = "undirected") -> TemporalGraph:
        """Return a graph of `events`, with their features if they have any."""
        graph = cls(direction, events.x_dim)
        graph.append(events)
        return graph

    def append(self, events: EventBatch) -> int:
        """Add `events`, all or none of them, and return the first one's position.

        Raises:
            ValueError: If a time is earlier than the one before it, a node id is too large, a node
                is on both sides of a bipartite graph, or features or labels do not fit the graph's.
        """
        columns = Columns(events)
        with self._appending:
            if self.edge_x is None:
                self._check_x(events)
                return self._native.append(*columns.addresses)
            self._check_x(events)
            self._native.check(*columns.addresses)
            if events.x is not None:
                self.edge_x.append(events.x)
            return self._native.append(*columns.addresses)

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
        slack = 1 - stats.num_entries / stats.capacity if stats.capacity else 0.0
        return GraphStats(stats.num_entries, stats.num_blocks, stats.max_blocks, slack, stats.bytes)
