"""Small layers that several models share."""

from __future__ import annotations

from torch import Tensor, nn


class MergeLayer(nn.Module):
    """W2 relu(W1 [left | right] + b1) + b2, without ever forming [left | right].

    Args:
        left_dim: Width of the first input.
        right_dim: Width of the second; 0 if there is none.
        hidden_dim: Width between the two maps.
        out_dim: Width of the result.
    """

    def __init__(self, left_dim: int, right_dim: int, hidden_dim: int, out_dim: int) -> None:
        super().__init__()
        self.left_proj = nn.Linear(left_dim, hidden_dim)
        self.right_proj = nn.Linear(right_dim, hidden_dim, bias=False) if right_dim else None
        self.out = nn.Linear(hidden_dim, out_dim)
        init_split(self.left_proj, self.right_proj)
        nn.init.xavier_normal_(self.out.weight)

    def forward(self, left: Tensor, right: Tensor | None) -> Tensor:
        """Return `[N, out_dim]` of `left` `[N, left_dim]` and `right` `[N, right_dim]`.

        `right` is None if `right_dim` is 0.
        """
        hidden = self.left_proj(left)
        if right is not None and self.right_proj is not None:
            hidden = hidden.addmm_(right, self.right_proj.weight.t())
        out: Tensor = self.out(hidden.relu_())
        return out


def init_split(*parts: nn.Linear | None) -> None:
    """Give the parts of a linear map, split by its inputs, Xavier's normal weights of the whole."""
    present = [part for part in parts if part is not None]
    fan = sum(part.in_features for part in present) + present[0].out_features
    for part in present:
        nn.init.normal_(part.weight, std=(2 / fan) ** 0.5)
