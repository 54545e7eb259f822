"""Time differences as vectors of cosines."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TimeEncoding(nn.Module):
    """cos(dt * w + b), with trainable frequencies and phases (Eq. 5 of arXiv:2002.07962).

    Frequencies start at 1 down to 1e-9 per second, evenly on a log scale, so that a second and
    a decade both leave a trace; phases start at 0.

    Args:
        dim: Width of the encoding, at least 1.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"a time encoding needs dim of at least 1, got {dim}")
        self.dim = dim
        self.frequency = nn.Parameter(10.0 ** -torch.linspace(0, 9, dim))
        self.phase = nn.Parameter(torch.zeros(dim))

    def forward(self, dt: Tensor) -> Tensor:
        """Return the encoding `[..., dim]` of `dt` `[...]` in seconds."""
        return torch.cos(dt.unsqueeze(-1) * self.frequency + self.phase)

    def of_zero(self) -> Tensor:
        """Return the encoding `[dim]` of dt = 0."""
        return torch.cos(self.phase)
