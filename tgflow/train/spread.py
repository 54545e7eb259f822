"""What is spread over ranks, and where it can be learned from."""

from __future__ import annotations

import torch

from tgflow.graph import TemporalGraph
from tgflow.tables.protocols import spread_table


def check_spread(graph: TemporalGraph, device: torch.device) -> None:
    """Refuse a graph, or features of it, that are spread over ranks where anything is on a GPU.

    Args:
        graph: What is learned from.
        device: Where models are.

    Raises:
        ValueError: If so.
    """
    if graph.gpu is None and device.type == "cpu":
        return
    if graph.shard.world > 1:
        raise ValueError(
            f"a sharded graph is for models on the CPU, and this one is on {device}; leave out "
            "TemporalGraph(shard=)"
        )
    if spread_table(graph.edge_x) is not None:
        raise ValueError(
            f"sharded rows are for models on the CPU, and this one is on {device}; leave out "
            "ShardedRows"
        )
