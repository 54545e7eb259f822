"""Attention of one query a pair over keys that pairs share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tgflow.nn._native import gather_rows
from tgflow.nn.dropout import Dropout
from tgflow.nn.mixer import FeedForward


class CrossAttention(nn.Module):
    """x = LN(q + attention(q, tokens)), then LN(x + feed-forward(x)): a post-norm layer.

    Keys and values are made once for each sequence of tokens, however many queries ask it.

    Args:
        dim: Width of queries, tokens and results.
        heads: Number of heads; divides `dim`.
        dropout: Share of weights and of outputs dropped in training.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"heads must divide dim, got {heads} and {dim}")
        self.heads = heads
        self.query, self.key, self.value, self.merge = (nn.Linear(dim, dim) for _ in range(4))
        self.weight_dropout, self.merge_dropout = Dropout(dropout), Dropout(dropout)
        self.attention_norm, self.out_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, 4 * dim, dropout)

    def keys(self, tokens: Tensor) -> Tensor:
        """Return keys and values side by side, `[G, k, 2 dim]`, of `tokens` `[G, k, dim]`."""
        return torch.cat([self.key(tokens), self.value(tokens)], dim=-1)

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor, group: Tensor) -> Tensor:
        """Return what each query makes of its sequence, float32 `[P, dim]`.

        Args:
            query: float32 `[P, dim]`.
            keys: What `keys` returned, float32 `[G, k, 2 dim]`.
            mask: Which tokens there are, bool `[G, k]`; a query of none attends to nothing.
            group: The sequence that each query asks, int64 `[P]`.
        """
        attended = self.merge_dropout(self.merge(self._attended(query, keys, mask, group)))
        x = self.attention_norm(query + attended)
        out: Tensor = self.out_norm(x + self.feed_forward(x))
        return out

    def _attended(self, query: Tensor, keys: Tensor, mask: Tensor, group: Tensor) -> Tensor:
        num, dim = query.shape
        k, width = keys.shape[1], dim // self.heads
        own = gather_rows(keys.flatten(1), group).view(num, k, 2, self.heads, width)
        key, value = own.permute(2, 0, 3, 1, 4)  # [P, heads, k, width] each
        q = self.query(query).view(num, self.heads, width, 1) * width**-0.5
        there = mask.index_select(0, group).unsqueeze(1)
        logits = (key @ q).squeeze(-1).masked_fill(~there, float("-inf"))
        weight = logits.softmax(dim=-1).masked_fill(~there, 0.0)  # no token at all: nan
        weight = self.weight_dropout(weight).unsqueeze(2)
        attended: Tensor = weight @ value
        return attended.reshape(num, dim)
