"""TGM's `RecencyNeighborHook` (`tgm-lib`) as a sampler."""

from typing import Any

import torch
from tgm import DGBatch, DGraph
from tgm.data import DGData
from tgm.hooks import RecencyNeighborHook
from torch import Tensor

from tgflow.graph.events import EventBatch


class TgmSampler:
    """The hook fed with batches that have roots but no events, or events and a single root."""

    def __init__(self, num_nodes: int, k: int) -> None:
        edge = torch.zeros(1, 2, dtype=torch.int32)
        self.graph = DGraph(
            DGData.from_raw(edge_time=torch.zeros(1).long(), edge_index=edge, time_delta="s")
        )
        self.hook = RecencyNeighborHook(
            num_nodes=num_nodes,
            num_nbrs=[k, k],
            seed_nodes_keys=["roots"],
            seed_times_keys=["root_t"],
        )

    def insert(self, events: EventBatch) -> None:
        """Add events that follow."""
        self._call(events, torch.zeros(1).long(), torch.zeros(1).long())

    def two_hops(self, nodes: Tensor, t: Tensor) -> object:
        """Sample two hops."""
        return self._call(NOTHING, nodes, t)

    def neighbors(self, nodes: Tensor, t: Tensor) -> Tensor:
        """Return the neighbors' ids, int64 `[Q, k]`, -1 where there is none, in any order."""
        ids: Tensor = self._call(NOTHING, nodes, t).nbr_nids[0].long()
        return ids

    def _call(self, events: EventBatch, nodes: Tensor, t: Tensor) -> Any:
        batch = DGBatch(events.src.int(), events.dst.int(), events.t)
        batch.roots, batch.root_t = nodes, t
        return self.hook(self.graph, batch)


NOTHING = EventBatch(*torch.empty(3, 0, dtype=torch.int64))
