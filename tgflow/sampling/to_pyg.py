"""Layers as PyTorch Geometric's data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tgflow.sampling.layers import Layer


def to_pyg(layers: Sequence[Layer]) -> list[Any]:
    """Return a `Data` per layer; see `Hops.to_pyg`."""
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise ImportError(
            "to_pyg() needs PyTorch Geometric: pip install torch_geometric"
        ) from error
    return [
        Data(
            edge_index=torch.stack([layer.source, layer.target]),
            n_id=layer.nodes,
            t=layer.t,
            e_id=layer.eid,
            edge_t=layer.edge_t,
            dt=layer.dt,
            num_targets=layer.num_targets,
            num_nodes=len(layer.nodes),
        )
        for layer in layers
    ]
