import pytest
import torch
from torch.nn import functional as F

from helpers.neural import made_block
from tgflow.nn import LogTimeEncoding, TimeEncoding, TokenProj

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


def test_tokens_of_a_row_are_its_own():
    torch.manual_seed(0)
    proj = TokenProj(6, LogTimeEncoding(4))
    block = made_block(3, 5, 9, 0, seed=0, dtype=torch.float32)
    before = proj(block, None).detach()
    assert torch.equal(before[0], proj.proj.bias.expand(5, -1))  # its slots are all empty
    block.dt[1] += 1
    changed = (proj(block, None) != before).flatten(1).any(dim=1)
    assert changed.tolist() == [False, True, False]


def test_tokens_of_no_targets():
    block = made_block(0, 5, 1, 0, seed=0, dtype=torch.float32)
    assert TokenProj(6, TimeEncoding(4))(block, None).shape == (0, 5, 6)


def test_tokens_need_something_to_say():
    with pytest.raises(ValueError, match="tokens need a time encoding or features, and have none"):
        TokenProj(6, None)
