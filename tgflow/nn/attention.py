"""Multi-head attention of a target over its temporal neighbors, and the layer around it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tgflow.batch import Block
from tgflow.model import width_error
from tgflow.nn._native import gather_rows
from tgflow.nn.attend import attend
from tgflow.nn.dropout import Dropout
from tgflow.nn.layers import MergeLayer, init_split
from tgflow.nn.time_encoding import TimeEncoding


class TemporalAttention(nn.Module):
    """Eqs. 5-7 of arXiv:2002.07962, reordered so that no neighbor is ever projected.

    With x_j = [h_j | edge_x_j | time(dt_j)], a score q . (W_k x_j + b_k) is (W_k^T q) . x_j plus
    what all neighbors of a target share, which the softmax cancels; and sum_j a_j (W_v x_j + b_v)
    is W_v (sum_j a_j x_j) + (sum_j a_j) b_v. Two products per target take the place of two per
    neighbor, and the result is the same. A target without neighbors gets zeros.

    Args:
        time: The time encoding, which layers may share.
        h_dim: Width of the inputs of targets and neighbors; 0 if nodes have none.
        edge_x_dim: Width of the edge features; 0 if there are none.
        dim: Width of the result, all heads together.
        heads: Number of heads; divides `dim`.
        dropout: Share of the weights dropped in training.
    """

    def __init__(
        self,
        time: TimeEncoding,
        *,
        h_dim: int,
        edge_x_dim: int,
        dim: int,
        heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"heads must divide dim, got {heads} heads and dim {dim}")
        self.h_dim, self.edge_x_dim = h_dim, edge_x_dim
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.time = time
        self.query = nn.Linear(h_dim, dim, bias=False) if h_dim else None
        self.query_time = nn.Linear(time.dim, dim)
        self.key = nn.Linear(h_dim + edge_x_dim + time.dim, dim, bias=False)
        self.value = nn.Linear(h_dim + edge_x_dim + time.dim, dim)
        init_split(self.query_time, self.query)
        for layer in (self.key, self.value):
            nn.init.xavier_uniform_(layer.weight)
        for layer in (self.query_time, self.value):
            nn.init.zeros_(layer.bias)

    def forward(self, target: Tensor | None, below: Tensor | None, block: Block) -> Tensor:
        """Return what each target gathers from its neighbors, `[N, dim]`.

        Args:
            target: Inputs of the targets, float32 `[N, h_dim]`, or None if `h_dim` is 0.
            below: Inputs of the frontier below, float32 `[F, h_dim]`, or None if `h_dim` is 0.
            block: The neighbors.

        Raises:
            ValueError: If `below` or the block's edge features have another width.
        """
        self._check_widths(below, block)
        keep = self.dropout.factors(self.heads, *block.dt.shape)
        attended = attend(self._input_queries(target), below, block, self.time, keep)
        value = self.value.weight.view(self.heads, -1, self.value.in_features)
        gathered = torch.bmm(attended.inputs, value.transpose(1, 2))
        bias = self.value.bias.view(self.heads, 1, -1)
        gathered = torch.addcmul(gathered, attended.weight.unsqueeze(-1), bias)
        return gathered.transpose(0, 1).flatten(1)

    def _check_widths(self, below: Tensor | None, block: Block) -> None:
        found = 0 if block.edge_table is None else block.edge_table.shape[1]
        if found != self.edge_x_dim:
            raise width_error("edge", self.edge_x_dim, found)
        found = 0 if below is None else below.shape[1]
        if found != self.h_dim:
            raise ValueError(
                f"attention over inputs of width {self.h_dim} got some of {found}; see its h_dim"
            )

    def _input_queries(self, target: Tensor | None) -> Tensor:
        """Return W_k^T q / sqrt(head width): `[heads, N, D]`, or one for all without targets."""
        q = self.query_time(self.time.at_zero())
        if target is not None and self.query is not None:
            q = F.linear(target, self.query.weight, q)
        width = q.shape[-1] // self.heads
        q = (q * (1 / math.sqrt(width))).view(-1, self.heads, width).transpose(0, 1)
        return torch.bmm(q, self.key.weight.view(self.heads, width, -1))


class AttentionLayer(nn.Module):
    """Attention over the neighbors, merged with the target's inputs (Eq. 8 of arXiv:2002.07962).

    Args:
        time: The time encoding, which layers may share.
        h_dim: Width of the inputs of targets and neighbors; 0 if nodes have none.
        edge_x_dim: Width of the edge features; 0 if there are none.
        dim: Width of the result.
        heads: Number of heads; divides `dim`.
        dropout: Share of attention weights dropped in training.
    """

    def __init__(
        self,
        time: TimeEncoding,
        *,
        h_dim: int,
        edge_x_dim: int,
        dim: int,
        heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.attention = TemporalAttention(
            time, h_dim=h_dim, edge_x_dim=edge_x_dim, dim=dim, heads=heads, dropout=dropout
        )
        self.merge = MergeLayer(dim, h_dim, dim, dim)

    def forward(self, below: Tensor | None, block: Block) -> Tensor:
        """Return embeddings `[N, dim]` of a block's targets; `below` as in `TemporalAttention`."""
        target = None if below is None else gather_rows(below, block.target)
        merged: Tensor = self.merge(self.attention(target, below, block), target)
        return merged
