"""PyTorch Geometric's `LastNeighborLoader` as a sampler."""

import torch
from torch import Tensor
from torch_geometric.nn.models.tgn import LastNeighborLoader

from tgflow.graph.events import EventBatch


class PygSampler:
    """The current last `k` neighbors of every node, without query times."""

    def __init__(self, num_nodes: int, k: int) -> None:
        self.loader = LastNeighborLoader(num_nodes, size=k)
        self.k = k

    def insert(self, events: EventBatch) -> None:
        """Add events that follow."""
        self.loader.insert(events.src, events.dst)

    def two_hops(self, nodes: Tensor, t: Tensor) -> object:
        """Sample two hops; each node once, as the loader requires."""
        below, _, _ = self.loader(torch.unique(nodes))
        return self.loader(below)

    def neighbors(self, nodes: Tensor, t: Tensor) -> Tensor:
        """Return the neighbors' ids, int64 `[Q, k]`, -1 where there is none, in any order."""
        ids, row = torch.unique(nodes, return_inverse=True)
        known, edges, _ = self.loader(ids)
        neighbor, node = known[edges]
        count = torch.searchsorted(node, ids, right=True) - torch.searchsorted(node, ids)
        slot = torch.arange(len(node)) - torch.searchsorted(node, node)
        out = torch.full((len(ids), self.k), -1)
        out[torch.repeat_interleave(count), slot] = neighbor
        return out[row]
