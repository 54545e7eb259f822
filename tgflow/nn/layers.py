"""Small layers that several models share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MergeLayer(nn.Module):
    """W2 relu(W1 [a | b] + b1) + b2, without ever forming [a | b].

    Args:
        a_dim: Width of the first input.
        b_dim: Width of the second; 0 if there is none.
        hidden_dim: Width between the two maps.
        out_dim: Width of the result.
    """

    def __init__(self, a_dim: int, b_dim: int, hidden_dim: int, out_dim: int) -> None:
        super().__init__()
        self.a_dim = a_dim
        self.first = nn.Linear(a_dim + b_dim, hidden_dim)
        self.second = nn.Linear(hidden_dim, out_dim)
        nn.init.xavier_normal_(self.first.weight)
        nn.init.xavier_normal_(self.second.weight)

    def forward(self, a: Tensor, b: Tensor | None) -> Tensor:
        """Return `[N, out_dim]` of `a` `[N, a_dim]` and `b` `[N, b_dim]`, None if `b_dim` is 0."""
        weight = self.first.weight
        hidden = F.linear(a, weight[:, : self.a_dim], self.first.bias)
        if b is not None:
            hidden = torch.addmm(hidden, b, weight[:, self.a_dim :].t())
        return F.linear(F.relu(hidden, inplace=True), self.second.weight, self.second.bias)
