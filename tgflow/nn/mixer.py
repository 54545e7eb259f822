"""MLP-Mixer (Tolstikhin et al., arXiv:2105.01601): tokens and channels mixed in turns."""

from __future__ import annotations

from torch import Tensor, nn

from tgflow.nn.dropout import Dropout


class Mixer(nn.Module):
    """x' = x + T(LN(x^T))^T, then x' + C(LN(x')): Eq. 1 of arXiv:2105.01601.

    T maps along the tokens of a row, C along the channels of a token; each is a `FeedForward`. The
    first norm is over the tokens of a channel, the second over the channels of a token, as in the
    code of GraphMixer and DyGLib; the paper's are both over channels.

    Args:
        num_tokens: Tokens of a row, at least 1; always that many, so that a row does not depend on
            others.
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
        """Return the mean of the mixed tokens, float32 `[N, dim]`, of `x` `[N, num_tokens, dim]`.

        It is `forward(x).mean(dim=1)` at less cost: the last linear map follows the mean, as it
        commutes with it. So does the dropout behind it, which in training drops elements of the
        mean.
        """
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
        self.hidden = nn.Linear(dim, hidden_dim)
        self.hidden_dropout = Dropout(dropout)
        self.out = nn.Linear(hidden_dim, dim)
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
