"""What a layer reads that is computed apart from a batch: features of nodes and of events."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from tgflow.batch import Block
from tgflow.graph import TemporalGraph
from tgflow.plan.pending import distinct_events


def node_features(graph: TemporalGraph, nodes: Tensor) -> Tensor | None:
    """Return features of `nodes`, int64 `[U]`, as `Batch.node_x`; None if the graph has none."""
    return None if graph.node_x is None else graph.node_x.gather(graph.node_rows(nodes))


def with_event_features(graph: TemporalGraph, block: Block) -> Block:
    """Return a block on the CPU with the features of its events, if the graph has any."""
    if graph.edge_x is None:
        return block
    events = distinct_events([block.eid], None)
    return replace(block, edge_row=events.rows[0], edge_table=graph.edge_x.gather(events.eids))
