"""Features of a graph's nodes: a table by node, which may grow with the stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tgflow.graph.events import EventBatch, NewNodes
from tgflow.graph.ids import NodeIds
from tgflow.graph.log import EventLog, NodeCount
from tgflow.graph.tables.table import Table

if TYPE_CHECKING:
    from tgflow.graph.feature_scale import FeatureScale


class NodeRows:
    """Maps nodes to rows of a table: row `i` is node `i`'s; nodes beyond its end have zeros."""

    def __init__(
        self, table: Table, log: EventLog, feature_scale: FeatureScale | None = None
    ) -> None:
        if table.dtype != torch.float32:
            raise ValueError(f"node_x must be a table of float32 rows, got {table.dtype}")
        self.table = table
        self.end: int | None = None
        """Number of rows when the first node without one appeared."""
        self.scale = None if feature_scale is None else feature_scale.unfitted()
        self._come_with_events = False
        self._log, self._count = log, NodeCount(log, len(table))

    @contextmanager
    def mentioned_by(self, events: EventBatch) -> Iterator[None]:
        """Enclose the append of events, whose new rows are added first."""
        self.check()
        new = self._new(events)
        before, size, known = self.end, len(self.table), None
        if new is not None:
            x = new.x
            if self.scale is not None:
                x, known = self.scale.scaled(x)
            self.table.append(x)
        if before is None and len(events):
            last, rows = int(torch.maximum(events.src.max(), events.dst.max())), len(self.table)
            self.end = rows if last >= rows else None
        try:
            yield
        except BaseException:
            self.end = before
            if new is not None:
                self.table.truncate(size)
            raise
        if new is not None:
            self._come_with_events = True
            if self.scale is not None:
                self.scale.keep(new.x, known)

    def _new(self, events: EventBatch) -> NewNodes | None:
        size, dim = len(self.table), self.table.dim
        begins = not self._come_with_events and not len(self._log)
        if events.new_nodes is not None and size and begins:
            raise ValueError(
                f"rows of nodes come with the first batch, and node_x has {size} already, of "
                f"unknown nodes; begin with an empty table, FeatureTable({dim})"
            )
        new = None if events.new_nodes is None else events.new_nodes.since(size)
        if new is None:
            return None
        if new.x.dim() != 2 or new.x.shape[1] != dim:
            raise ValueError(
                f"the graph has node features of width {dim}, the batch has {list(new.x.shape)}; "
                "create the graph with TemporalGraph(node_x=FeatureTable(...))"
            )
        if new.start != size or self.end is not None:
            raise ValueError(
                f"rows of nodes from {new.start} on come with the batch, and node_x has {size} "
                "rows: each node's row must come with the first event that mentions it, and no "
                "node without one before"
            )
        return new

    def check(self) -> None:
        """Raise ValueError if rows were appended for nodes that events had mentioned before."""
        if self.end is not None and len(self.table) > self.end:
            raise ValueError(
                f"node_x has {len(self.table)} rows now, but had {self.end} when an event came "
                f"with node {self.end} or a later one; append the rows of nodes (zeros, if "
                "nothing is known) before the events that mention them"
            )

    def rows_of(self, nodes: Tensor) -> Tensor:
        """Return the row of each node, int64 `[N]`; -1, a row of zeros, for those without."""
        end = self.end
        return nodes if end is None else nodes.masked_fill(nodes >= end, -1)

    def num_at(self, position: int) -> int:
        """Return the number of rows of the first `position` events; all, if added separately."""
        return self._count.upto(position) if self._come_with_events else len(self.table)


def mention_nodes(rows: NodeRows | None, events: EventBatch) -> AbstractContextManager[None]:
    """Return the context for appending events to a graph with these rows, or without any."""
    if rows is not None:
        return rows.mentioned_by(events)
    if events.new_nodes is not None:
        width = events.new_nodes.x.shape[1]
        raise ValueError(
            f"the batch brings features of nodes, and the graph has none; create it with "
            f"TemporalGraph(node_x=FeatureTable({width}))"
        )
    return nullcontext()


def check_ids(table: Table | None, ids: NodeIds | None) -> None:
    """Raise ValueError if a stream has not numbered its nodes and the table already has rows."""
    if table is not None and len(table) and ids is not None and not len(ids):
        raise ValueError(
            f"node_x has {len(table)} rows, and the stream has not numbered its nodes yet: row i "
            "is of the i-th node to appear, whatever its id, so the nodes of these rows are "
            "unknown; give features by id, NodeFeatures(table, id=...).along(stream), with an "
            "empty node_x"
        )
