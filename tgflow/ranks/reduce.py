"""The canonical sum over ranks: chunk c of every subtree's sum goes to rank c, and back to all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tgflow.base.peers import Peers
from tgflow.base.slice_schedule import SliceSchedule
from tgflow.base.tree_sum import TreeSum, subtrees
from tgflow.ranks.parcel import Spec

GRADIENT = "gradient"
"""Name of the sums in payloads and in `Traffic`."""


class Reduction:
    """Sums one vector per slice into one vector for all, in two collectives.

    `sends` and `specs` are for a payload that holds other tensors too; `finish` does the rest.
    Raises WorldError if there are more ranks than slices.
    """

    def __init__(self, peers: Peers, slices: int, length: int) -> None:
        schedule = SliceSchedule(slices, peers.world)
        owned = [schedule.slices_of(rank) for rank in range(peers.world)]
        self.slices = owned[peers.rank]
        """Slices computed by this rank."""
        self._peers = peers
        self._roots = [subtrees(each, slices) for each in owned]
        self._leaves = slices
        bounds = [length * rank // peers.world for rank in range(peers.world + 1)]
        self._sizes = [stop - start for start, stop in pairwise(bounds)]

    def sends(self, tree: TreeSum) -> list[Tensor]:
        """Return the payload of each rank, float `[R, C]`: sums of R subtrees of `slices`, C
        elements each.
        """
        assert [leaves for leaves, _ in tree.roots] == self._roots[self._peers.rank]
        sums = torch.stack([values for _, values in tree.roots])
        return list(torch.split(sums, self._sizes, dim=1))

    def specs(self, dtype: torch.dtype = torch.float32) -> list[Spec]:
        """Return dtype and shape of the chunk from each rank."""
        size = self._sizes[self._peers.rank]
        return [(dtype, (len(roots), size)) for roots in self._roots]

    def finish(self, received: Sequence[Tensor]) -> Tensor:
        """Add the chunks of `specs` in rank order, overwriting them; return the gathered sum,
        `[length]`.
        """
        tree = TreeSum(self._leaves)
        for roots, sums in zip(self._roots, received, strict=True):
            for leaves, values in zip(roots, sums, strict=True):
                tree.add(leaves, values)
        return self._peers.gather(tree.total(), self._sizes, kind=GRADIENT)
