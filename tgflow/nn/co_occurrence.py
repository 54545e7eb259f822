"""Counts of the neighbors that two nodes share, and their encoding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tgflow.graph.batch import Batch
from tgflow.nn.linear import Linear
from tgflow.nn.pairs import Pairs


def co_occurrence(batch: Batch, pairs: Pairs) -> Tensor:
    """Count each token's node in the sequences of both nodes of its pair.

    A node's sequence is the node itself, then its neighbors in `batch.blocks[0]`. Does not
    synchronize. Returns int32 `[P, 2, 1 + k, 2]`: for each token of the source's and destination's
    sequences, the counts of its node in the source's and the destination's; 0 in an empty slot.
    """
    block = batch.blocks[0]
    own = batch.nodes.index_select(0, block.target)
    others = batch.nodes.index_select(0, block.neighbor.flatten()).view(block.neighbor.shape)
    rows = torch.stack([pairs.src_row, pairs.dst_row], dim=1)
    is_there = torch.cat([block.mask.new_ones(len(own), 1), block.mask], dim=1)[rows]
    token = torch.cat([own.unsqueeze(1), others], dim=1)[rows]  # [P, 2, 1 + k]
    is_same = token[:, :, :, None, None] == token[:, None, None, :, :]
    counts = (is_same & is_there[:, None, None, :, :]).sum(-1)
    return (counts * is_there.unsqueeze(-1)).to(torch.int32)


class CoOccurrenceEncoding(nn.Module):
    """W [m(c_src) + m(c_dst)] + b of the counts c of a patch's tokens, `[P, 2, patches, out_dim]`.

    Eqs. 3 and 4 of arXiv:2303.13047, with m of two layers. Counts take few distinct values, so m
    and W are applied once per value, and a patch sums rows of that table.
    """

    number: Tensor

    def __init__(self, length: int, patch: int, dim: int, out_dim: int) -> None:
        super().__init__()
        self.length, self.patch = length, patch
        self.hidden = Linear(1, dim)
        self.encoded = Linear(dim, dim)
        self.proj = Linear(patch * dim, out_dim)
        number = torch.arange(1.0 + length).unsqueeze(1)
        self.register_buffer("number", number, persistent=False)

    def forward(self, counts: Tensor) -> Tensor:
        dim, out_dim = self.encoded.in_features, self.proj.out_features
        encoded = self.encoded(F.relu(self.hidden(self.number)))  # [1 + length, dim]
        weight = self.proj.weight.view(out_dim, self.patch, dim).permute(1, 2, 0)
        table = (encoded @ weight).view(-1, out_dim)  # a row for each place in a patch and count
        place = torch.arange(self.patch, dtype=torch.int32, device=counts.device)
        row = counts.view(-1, self.patch, 2) + (place * (1 + self.length)).unsqueeze(1)
        summed = F.embedding_bag(row.view(-1, 2 * self.patch), table, mode="sum")
        patches = summed.view(len(counts), 2, self.length // self.patch, out_dim)
        return patches + self.proj.bias
