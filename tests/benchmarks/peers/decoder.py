"""Link decoder for peers without their own."""

from __future__ import annotations

from torch import Tensor, nn


class PairDecoder(nn.Module):
    """A two-layer score of pairs of embeddings."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.src = nn.Linear(dim, dim)
        self.dst = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return the logit of each pair, float32 `[B]`."""
        out: Tensor = self.out((self.src(src) + self.dst(dst)).relu()).squeeze(-1)
        return out
