"""Hops as PyTorch Geometric's data."""

from __future__ import annotations

from typing import Any

import torch

from tgflow.sampling.blocks import to_blocks
from tgflow.sampling.hops import Hops


def to_pyg(hops: Hops) -> list[Any]:
    """Return the hops as a `torch_geometric.data.Data` each, lowest first. Synchronizes.

    Each has `edge_index`, `n_id`, `t`, and per edge `e_id` (log positions), `edge_t` and `dt`, in
    ticks. The first `num_targets` nodes are the targets, so that a convolution is
    `x = conv((x, x[:data.num_targets]), data.edge_index)`; query `i` is row `hops.roots[i]` of the
    last one's result.

    Raises:
        ImportError: If PyTorch Geometric is not installed.

    Example:
        >>> hops = tg.sample_hops(graph, torch.tensor([0]), torch.tensor([50]), fanouts=[2, 2])
        >>> [data.num_targets for data in tg.sampling.to_pyg(hops)]
        [3, 1]
    """
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise ImportError(
            "to_pyg() needs PyTorch Geometric: pip install torch_geometric"
        ) from error
    return [
        Data(
            edge_index=torch.stack([block.source, block.target]),
            n_id=block.nodes,
            t=block.t,
            e_id=block.eid,
            edge_t=block.edge_t,
            dt=block.dt,
            num_targets=block.num_targets,
            num_nodes=len(block.nodes),
        )
        for block in to_blocks(hops)
    ]
