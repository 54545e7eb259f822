"""Small layers that several models share."""

from __future__ import annotations

from torch import Tensor, nn


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
        self.of_a = nn.Linear(a_dim, hidden_dim)
        self.of_b = nn.Linear(b_dim, hidden_dim, bias=False) if b_dim else None
        self.out = nn.Linear(hidden_dim, out_dim)
        init_split(self.of_a, self.of_b)
        nn.init.xavier_normal_(self.out.weight)

    def forward(self, a: Tensor, b: Tensor | None) -> Tensor:
        """Return `[N, out_dim]` of `a` `[N, a_dim]` and `b` `[N, b_dim]`, None if `b_dim` is 0."""
        hidden = self.of_a(a)
        if b is not None and self.of_b is not None:
            hidden = hidden.addmm_(b, self.of_b.weight.t())
        out: Tensor = self.out(hidden.relu_())
        return out


def init_split(*parts: nn.Linear | None) -> None:
    """Give the parts of a linear map, split by its inputs, Xavier's normal weights of the whole."""
    present = [part for part in parts if part is not None]
    fan = sum(part.in_features for part in present) + present[0].out_features
    for part in present:
        nn.init.normal_(part.weight, std=(2 / fan) ** 0.5)
