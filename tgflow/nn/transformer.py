"""A layer of a transformer over short sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tgflow.nn.dropout import Dropout
from tgflow.nn.mixer import FeedForward


class TransformerLayer(nn.Module):
    """x' = x + attention(LN(x)), then x' + map(LN(x')): pre-norm, GELU, a hidden width of 4 dim.

    Args:
        dim: Width of a token.
        heads: Attention heads; divides `dim`.
        dropout: Share of attention weights, of hidden and of output elements dropped in training.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"heads must divide dim, got {heads} heads and dim {dim}")
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.weight_dropout = Dropout(dropout)
        self.merge = nn.Linear(dim, dim)
        self.merge_dropout = Dropout(dropout)
        self.map_norm = nn.LayerNorm(dim)
        self.map = FeedForward(dim, 4 * dim, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next tokens, float32 `[N, length, dim]`, of `x` of the same shape."""
        x = self._with_attention(x)
        after: Tensor = x + self.map(self.map_norm(x))
        return after

    def means(self, x: Tensor, parts: int) -> Tensor:
        """Return means of the next tokens over equal parts of a sequence, `[N, parts, dim]`.

        It is those of `forward(x)` at less cost: the last linear map follows the means, as it
        commutes with them. So does the dropout behind it, which in training drops elements of the
        means.

        Args:
            x: float32 `[N, length, dim]`.
            parts: Divides `length`.
        """
        x = self._with_attention(x)
        hidden = _means(self.map.expanded(self.map_norm(x)), parts)
        return _means(x, parts) + self.map.contracted(hidden)

    def _with_attention(self, x: Tensor) -> Tensor:
        after: Tensor = x + self.merge_dropout(self.merge(self._attended(self.attention_norm(x))))
        return after

    def _attended(self, x: Tensor) -> Tensor:
        num, length, dim = x.shape
        tokens = self.query_key_value(x).view(num, length, 3, self.heads, dim // self.heads)
        keep = self.weight_dropout.of_shape(num, self.heads, length, length)
        query, key, value = tokens.permute(2, 0, 3, 1, 4)  # [N, heads, length, dim / heads] each
        if keep is None:
            attended = F.scaled_dot_product_attention(query, key, value)
        else:
            scaled = query * (query.shape[-1] ** -0.5)
            weight = torch.softmax(scaled @ key.transpose(2, 3), dim=-1)
            attended = (weight * keep) @ value
        return attended.transpose(1, 2).reshape(num, length, dim)


def _means(x: Tensor, parts: int) -> Tensor:
    """Return the means over equal parts of tokens, `[N, parts, dim]` of `[N, length, dim]`."""
    num, length, dim = x.shape
    return x.view(num, parts, length // parts, dim).mean(dim=2)
