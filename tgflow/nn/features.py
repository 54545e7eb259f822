"""Fixed node features as part of a model."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class NodeFeatures(nn.Module):
    """A table of node features; nodes beyond its end have zeros.

    Args:
        x: Features, float32 `[num_nodes, x_dim]`.

    Raises:
        ValueError: If `x` is not a float32 matrix.
    """

    x: Tensor

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        if x.dim() != 2 or x.dtype != torch.float32:
            raise ValueError(
                f"node_x must be float32 [num_nodes, x_dim], got {x.dtype} {list(x.shape)}"
            )
        # One more row, of zeros, for nodes that came after the table was made.
        self.register_buffer("x", torch.cat([x, x.new_zeros(1, x.shape[1])]), persistent=False)

    @property
    def dim(self) -> int:
        """Width of the features."""
        return self.x.shape[1]

    def forward(self, nodes: Tensor) -> Tensor:
        """Return the features of `nodes` (int64 `[U]`): float32 `[U, x_dim]`."""
        return self.x.index_select(0, nodes.clamp(max=len(self.x) - 1))
