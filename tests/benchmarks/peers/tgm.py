"""TGM's TGAT and GraphMixer (`tgm-lib`), put together as in its own link-prediction examples."""

from collections.abc import Iterator
from typing import Any

import torch
from tgm import DGraph
from tgm.constants import PADDED_NODE_ID
from tgm.data import DGData, DGDataLoader
from tgm.hooks import DeduplicationHook, HookManager, NegativeEdgeSamplerHook, RecencyNeighborHook
from tgm.nn import LinkPredictor, TemporalAttention, Time2Vec
from tgm.nn.modules import MLPMixer
from torch import Tensor, nn

from benchmarks.own import Task
from benchmarks.peers.loop import Loop


class Tgm(Loop):
    """Base of all models: TGM's loader with its hooks, decoder."""

    def __init__(self, task: Task, hops: int) -> None:
        torch.manual_seed(task.seed)
        self.task = task
        self.hooks = _hooks(task, hops)
        self.decoder = LinkPredictor(node_dim=task.dim, hidden_dim=task.dim)
        self.modules = nn.ModuleList([self.decoder])
        self._batches = self._load(0, task.train_stop)

    def _learn(self, *modules: nn.Module) -> None:
        self.modules.extend(modules).to(self.task.device)
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=self.task.lr)

    def _load(self, start: int, stop: int) -> Iterator[Any]:
        part = self.task.events[start:stop]
        data = DGData.from_raw(
            edge_time=part.t,
            edge_index=torch.stack([part.src, part.dst], dim=1).int(),
            edge_x=part.x,
            time_delta="s",
        )
        graph = DGraph(data, self.task.device)
        return iter(DGDataLoader(graph, batch_size=self.task.batch_size, hook_manager=self.hooks))


def _hooks(task: Task, hops: int) -> HookManager:
    dst = task.events.dst
    hooks = HookManager(keys=["link"])
    hooks.register("link", NegativeEdgeSamplerHook(int(dst.min()), int(dst.max()) + 1))
    neighbors = RecencyNeighborHook(
        num_nodes=task.num_nodes,
        num_nbrs=[task.neighbors] * hops,
        seed_nodes_keys=["edge_src", "edge_dst", "neg"],
        seed_times_keys=["edge_time", "edge_time", "neg_time"],
    )
    hooks.register("link", neighbors)
    hooks.register("link", DeduplicationHook())
    hooks.set_active_hooks("link")
    return hooks


class TgmTgat(Tgm):
    """Two hops of `TemporalAttention` over recent neighbors."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, hops=2)
        self.encoder = _Attention(task)
        self._learn(self.encoder)

    def _scores(self, batch: Any) -> tuple[Tensor, Tensor]:
        src, dst, negative = self.encoder(batch).chunk(3)
        return self.decoder(src, dst), self.decoder(src, negative)


class TgmGraphMixer(Tgm):
    """`MLPMixer` over recent events, without the node encoder of its example.

    That averages the features of 2,000 neighbors a node, which the task does not have; with random
    ones, as in the example, it takes several times as long as all of this.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task, hops=1)
        dim = task.dim
        self.time = Time2Vec(dim)
        self.time.requires_grad_(False)
        self.tokens = nn.Linear(task.events.x_dim + dim, dim)
        mixers = (MLPMixer(task.neighbors, dim, dropout=task.dropout) for _ in range(2))
        self.mixers = nn.Sequential(*mixers)
        self.out = nn.Linear(dim, dim)
        self._learn(self.time, self.tokens, self.mixers, self.out)

    def _scores(self, batch: Any) -> tuple[Tensor, Tensor]:
        time = self.time(batch.seed_times[0][:, None] - batch.nbr_edge_time[0])
        time = time.masked_fill((batch.nbr_nids[0] == PADDED_NODE_ID).unsqueeze(-1), 0.0)
        tokens = self.tokens(torch.cat([batch.nbr_edge_x[0], time], dim=-1))
        src, dst, negative = self.out(self.mixers(tokens).mean(dim=1)).chunk(3)
        return self.decoder(src, dst), self.decoder(src, negative)


class _Attention(nn.Module):
    """Two `TemporalAttention` layers, each merged with the node's features, which are zeros."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        dim = task.dim
        self.dim = dim
        self.time = Time2Vec(dim)
        self.attention = nn.ModuleList(
            TemporalAttention(task.heads, dim, task.events.x_dim, dim, task.dropout)
            for _ in range(2)
        )
        width = 2 * dim  # width of an attention output, padded to a multiple of its heads
        width += -width % task.heads
        self.merge = nn.ModuleList(
            nn.Sequential(nn.Linear(width + dim, dim), nn.ReLU(), nn.Linear(dim, dim))
            for _ in range(2)
        )

    def forward(self, batch: Any) -> Tensor:
        """Return the embeddings of sources, destinations and negatives, `[3 B, dim]`."""
        sizes = [len(batch.seed_nids[0]), *(hop.numel() for hop in batch.nbr_nids)]
        device = batch.edge_src.device
        inputs = [torch.zeros(size, self.dim, device=device) for size in sizes]
        below = inputs
        for layer, merge in zip(self.attention, self.merge, strict=True):
            below = [
                merge(torch.cat([self._attend(batch, layer, hop, below), inputs[hop]], dim=1))
                for hop in range(len(below) - 1)
            ]
        return below[0]

    def _attend(self, batch: Any, layer: nn.Module, hop: int, below: list[Tensor]) -> Tensor:
        neighbors = batch.nbr_nids[hop]
        dt = batch.seed_times[hop][:, None] - batch.nbr_edge_time[hop]
        out: Tensor = layer(
            node_feat=below[hop],
            time_feat=self.time(torch.zeros(len(neighbors), device=neighbors.device)),
            edge_feat=batch.nbr_edge_x[hop],
            nbr_node_feat=below[hop + 1].view(*neighbors.shape, -1),
            nbr_time_feat=self.time(dt),
            valid_nbr_mask=neighbors != PADDED_NODE_ID,
        )
        return out
