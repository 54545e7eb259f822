import pytest
import torch
from torch.nn import functional as F

from helpers.neural import made_block
from tgflow.nn import TimeEncoding, TokenProj

WIDTHS = [(3, 2, 4, 5), (0, 0, 4, 0), (0, 3, 0, 0), (2, 0, 0, 0), (0, 2, 4, 0), (0, 0, 0, 1)]
"""Of node features, edge features, the time encoding and further columns."""


@pytest.mark.parametrize("widths", WIDTHS)
def test_projected_tokens_are_the_joined_tokens_mapped(widths):
    torch.manual_seed(0)
    node_dim, edge_dim, time_dim, extra_dim = widths
    time = TimeEncoding(time_dim) if time_dim else None
    proj = TokenProj(
        6, time, node_x_dim=node_dim, edge_x_dim=edge_dim, extra_dim=extra_dim
    ).double()
    block = made_block(7, 5, 9, edge_dim, seed=0)
    node_x = torch.randn(9, node_dim, dtype=torch.float64) if node_dim else None
    extra = torch.randn(7, 5, extra_dim, dtype=torch.float64) if extra_dim else None
    parts = [
        None if node_x is None else node_x[block.neighbor],
        block.edge_x,
        None if time is None else time(block.dt),
        extra,
    ]
    joined = torch.cat([part for part in parts if part is not None], dim=-1)
    joined[~block.mask] = 0
    expected = F.linear(joined, proj.proj.weight, proj.proj.bias)
    torch.testing.assert_close(proj(block, node_x, extra), expected)
