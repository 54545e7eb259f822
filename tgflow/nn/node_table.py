"""Trained node embeddings in a table of fixed size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tgflow.nn._native import gather_rows
from tgflow.nn.dropout import Dropout


class NodeTable(nn.Module):
    """Embeddings of nodes seen in training; all others share one unknown row.

    The table has a fixed size, as the optimizer's state cannot grow. Node v below `size - 1` has
    row 1 + v; larger ones are hashed to shared rows. A row that no batch in training mode has used
    reads as row 0, which is trained by substituting it for random known nodes. Every optimizer step
    visits all rows: choose `size` near the number of nodes.

    Args:
        size: Rows, at least 2.
        dim: Width of a row.
        unknown: Share of the nodes read as unknown in training.

    Raises:
        ValueError: If `size` or `unknown` is out of range.
    """

    seen: Tensor
    """bool `[size]`: whether a row was trained; saved with the parameters."""

    def __init__(self, size: int, dim: int, unknown: float = 0.02) -> None:
        super().__init__()
        if size < 2:
            raise ValueError(f"a table of nodes needs size of at least 2, got {size}")
        self.size = size
        self.rows = nn.Parameter(torch.randn(size, dim) * dim**-0.5)
        self.register_buffer("seen", torch.zeros(size, dtype=torch.bool))
        self.as_known = Dropout(unknown)

    def forward(self, nodes: Tensor, is_used: Tensor) -> Tensor:
        """Return the rows of `nodes`, float32 `[U, dim]`; does not synchronize.

        In training mode the used ones are known from then on.

        Args:
            nodes: int64 `[U]`.
            is_used: bool `[U]`: False for padding.
        """
        row = self.row_of(nodes)
        if self.training:
            self.seen.index_fill_(0, torch.where(is_used, row, 0), True)
        row = torch.where(self.seen.index_select(0, row), row, 0)
        known = self.as_known.factors(len(row))
        return gather_rows(self.rows, row if known is None else torch.where(known > 0, row, 0))

    def row_of(self, nodes: Tensor) -> Tensor:
        """Return the row of each node, known or not: int64, from 1."""
        return 1 + torch.where(nodes < self.size - 1, nodes, _mixed(nodes) % (self.size - 1))


def _mixed(x: Tensor) -> Tensor:
    """Return 31 mixed bits of each number (the finalizer of MurmurHash3), at least 0."""
    for factor in (-0x00AE502812AA7333, -0x3B314601E57A13AD):
        x = (x ^ ((x >> 33) & 0x7FFFFFFF)) * factor
    return (x >> 33) & 0x7FFFFFFF
