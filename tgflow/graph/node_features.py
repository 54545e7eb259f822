"""Features of a graph's nodes: a table by node, which may grow with the stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tgflow.events import EventBatch
from tgflow.tables.protocols import Table


class NodeFeatures:
    """Which row of a table is whose: row `i` is node `i`'s, nodes beyond its end have zeros.

    A row must come before the first event that mentions its node. What is read of a node then never
    depends on when it is read: a node that came without a row has zeros for good.

    Args:
        table: Rows of float32, any number of them; it may grow later.

    Raises:
        ValueError: If the rows are of another dtype.
    """

    def __init__(self, table: Table) -> None:
        if table.dtype != torch.float32:
            raise ValueError(f"node_x must be a table of float32 rows, got {table.dtype}")
        self.table = table
        self.end: int | None = None
        """How many rows there were when the first node without one came."""

    @contextmanager
    def mentioned_by(self, events: EventBatch) -> Iterator[None]:
        """Enclose the append of events; where that fails, they have mentioned no node.

        Raises:
            ValueError: As `check`.
        """
        self.check()
        before = self.end
        if before is None and len(events):
            last, size = int(torch.maximum(events.src.max(), events.dst.max())), len(self.table)
            self.end = size if last >= size else None
        try:
            yield
        except BaseException:
            self.end = before
            raise

    def check(self) -> None:
        """Raise ValueError if rows were appended for nodes that events had mentioned before."""
        if self.end is not None and len(self.table) > self.end:
            raise ValueError(
                f"node_x has {len(self.table)} rows now, but had {self.end} when an event came "
                f"with node {self.end} or a later one; append the rows of nodes (zeros, if "
                "nothing is known) before the events that mention them"
            )

    def rows_of(self, nodes: Tensor) -> Tensor:
        """Return the row of each node, int64 `[N]`; -1, whose row is zeros, for those without."""
        end = self.end
        return nodes if end is None else nodes.masked_fill(nodes >= end, -1)
