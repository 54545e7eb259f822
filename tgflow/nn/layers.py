"""Layers that models share: merge layer, cross-attention, MLP-Mixer and transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tgflow.nn._native import gather_rows
from tgflow.nn.dropout import Dropout
from tgflow.nn.linear import Linear


class MergeLayer(nn.Module):
    """W2 relu(W1 [left | right] + b1) + b2, without concatenating [left | right].

    Args:
        left_dim: Width of the first input.
        right_dim: Width of the second; 0 if there is none.
        hidden_dim: Width between the two maps.
        out_dim: Width of the result.
    """

    def __init__(self, left_dim: int, right_dim: int, hidden_dim: int, out_dim: int) -> None:
        super().__init__()
        self.left_proj = Linear(left_dim, hidden_dim)
        self.right_proj = Linear(right_dim, hidden_dim, bias=False) if right_dim else None
        self.out = Linear(hidden_dim, out_dim)
        init_split(self.left_proj, self.right_proj)
        nn.init.xavier_normal_(self.out.weight)

    def forward(self, left: Tensor, right: Tensor | None) -> Tensor:
        """Return `[N, out_dim]` of `left` `[N, left_dim]` and `right` `[N, right_dim]`.

        `right` is None if `right_dim` is 0.
        """
        hidden = self.left_proj(left)
        if right is not None and self.right_proj is not None:
            hidden = self.right_proj(right, prior=hidden)
        out: Tensor = self.out(hidden.relu_())
        return out


def init_split(*parts: Linear | None) -> None:
    """Initialize parts of a map split by inputs with the Xavier normal weights of the whole map."""
    present = [part for part in parts if part is not None]
    fan = sum(part.in_features for part in present) + present[0].out_features
    for part in present:
        nn.init.normal_(part.weight, std=(2 / fan) ** 0.5)


class Mixer(nn.Module):
    """x' = x + T(LN(x^T))^T, then x' + C(LN(x')): Eq. 1 of arXiv:2105.01601.

    T maps along the tokens of a row, C along the channels of a token; each is a `FeedForward`. The
    first norm is over the tokens of a channel, the second over the channels of a token, as in the
    code of GraphMixer and DyGLib; the paper's are both over channels.

    Args:
        num_tokens: Tokens of a row, at least 1; fixed, so that a row does not depend on others.
        dim: Channels of a token.
        dropout: Share of hidden and of output elements dropped in training.
        token_ratio: Hidden width of T as a multiple of `num_tokens`, at least 1 after rounding
            down.
        channel_ratio: Hidden width of C as a multiple of `dim`.
    """

    def __init__(
        self,
        num_tokens: int,
        dim: int,
        dropout: float,
        *,
        token_ratio: float = 0.5,
        channel_ratio: float = 4.0,
    ) -> None:
        super().__init__()
        self.token_norm = nn.LayerNorm(num_tokens)
        self.token_map = FeedForward(num_tokens, max(int(token_ratio * num_tokens), 1), dropout)
        self.channel_norm = nn.LayerNorm(dim)
        self.channel_map = FeedForward(dim, int(channel_ratio * dim), dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed tokens, float32 `[N, num_tokens, dim]`, of `x` of the same shape."""
        x = self._token_mixed(x)
        mixed: Tensor = x + self.channel_map(self.channel_norm(x))
        return mixed

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of the mixed tokens of `x`, float32 `[N, dim]`."""
        x = self._token_mixed(x)
        hidden = self.channel_map.expanded(self.channel_norm(x)).mean(dim=1)
        mean: Tensor = x.mean(dim=1) + self.channel_map.contracted(hidden)
        return mean

    def _token_mixed(self, x: Tensor) -> Tensor:
        mixed: Tensor = x + self.token_map(self.token_norm(x.transpose(1, 2))).transpose(1, 2)
        return mixed


class FeedForward(nn.Module):
    """Linear, GELU, dropout, Linear, dropout: from `dim` to `hidden_dim` and back.

    Args:
        dim: Width of input and output.
        hidden_dim: Width between.
        dropout: Share of hidden and of output elements dropped in training.
    """

    def __init__(self, dim: int, hidden_dim: int, dropout: float) -> None:
        super().__init__()
        self.hidden = Linear(dim, hidden_dim)
        self.hidden_dropout = Dropout(dropout)
        self.out = Linear(hidden_dim, dim)
        self.out_dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[N, ..., dim]` of `x` `[N, ..., dim]`."""
        return self.contracted(self.expanded(x))

    def expanded(self, x: Tensor) -> Tensor:
        """Return the first half, `[N, ..., hidden_dim]` of `x`."""
        return self.hidden_dropout.of_gelu(self.hidden(x))

    def contracted(self, hidden: Tensor) -> Tensor:
        """Return the second half, `[N, ..., dim]` of `hidden`."""
        out: Tensor = self.out_dropout(self.out(hidden))
        return out


class CrossAttention(nn.Module):
    """x = LN(q + attention(q, tokens)), then LN(x + feed-forward(x)): a post-norm layer.

    Keys and values are computed once per sequence of tokens, for all its queries.

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
        self.query, self.key, self.value, self.merge = (Linear(dim, dim) for _ in range(4))
        self.weight_dropout, self.merge_dropout = Dropout(dropout), Dropout(dropout)
        self.attention_norm, self.out_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, 4 * dim, dropout)

    def keys(self, tokens: Tensor) -> Tensor:
        """Return keys and values side by side, `[G, k, 2 dim]`, of `tokens` `[G, k, dim]`."""
        return torch.cat([self.key(tokens), self.value(tokens)], dim=-1)

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor, group: Tensor) -> Tensor:
        """Return the attention output of each query over its sequence, float32 `[P, dim]`.

        Args:
            query: float32 `[P, dim]`.
            keys: Result of `keys`, float32 `[G, k, 2 dim]`.
            mask: True for existing tokens, bool `[G, k]`; without any a query attends to nothing.
            group: Sequence index of each query, int64 `[P]`.
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


class TransformerLayer(nn.Module):
    """x' = x + attention(LN(x)), then x' + map(LN(x')): pre-norm, GELU, a hidden width of 4 dim."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"heads must divide dim, got {heads} heads and dim {dim}")
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.query_key_value = Linear(dim, 3 * dim)
        self.weight_dropout = Dropout(dropout)
        self.merge = Linear(dim, dim)
        self.merge_dropout = Dropout(dropout)
        self.map_norm = nn.LayerNorm(dim)
        self.map = FeedForward(dim, 4 * dim, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self._with_attention(x)
        after: Tensor = x + self.map(self.map_norm(x))
        return after

    def means(self, x: Tensor, parts: int) -> Tensor:
        """Return means of the next tokens over equal parts of a sequence, `[N, parts, dim]`."""
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
