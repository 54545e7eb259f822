"""PyTorch Geometric's TGN, composed as in its `examples/tgn.py`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import TemporalData
from torch_geometric.loader import TemporalDataLoader
from torch_geometric.nn import TGNMemory, TransformerConv
from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader

from benchmarks.own import Task
from benchmarks.peers.loop import Loop


class PygTgn(Loop):
    """`TGNMemory` + `LastNeighborLoader` + `TransformerConv`, with their defaults."""

    def __init__(self, task: Task) -> None:
        torch.manual_seed(task.seed)
        self.task = task
        events = task.events
        data = TemporalData(src=events.src, dst=events.dst, t=events.t, msg=events.x)
        self.data = data.to(task.device)
        self.memory = TGNMemory(
            task.num_nodes,
            events.x_dim,
            task.dim,
            task.dim,
            message_module=IdentityMessage(events.x_dim, task.dim, task.dim),
            aggregator_module=LastAggregator(),
        )
        task.set_frequencies(self.memory.time_enc.lin)
        self.embedding = _Embedding(task, self.memory.time_enc)
        self.decoder = _PairDecoder(task.dim)
        nodes, device = task.num_nodes, task.device
        self.neighbors = LastNeighborLoader(nodes, size=task.neighbors, device=device)
        self.local = torch.empty(nodes, dtype=torch.int64, device=device)
        self.modules = nn.ModuleList([self.memory, self.embedding, self.decoder]).to(device)
        self.memory.reset_state()  # makes its store of messages on the device
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=task.lr)
        self._batches = self._load(0, task.train_stop)

    def _load(self, start: int, stop: int) -> Iterator[Any]:
        return iter(
            TemporalDataLoader(
                self.data[start:stop], batch_size=self.task.batch_size, neg_sampling_ratio=1.0
            )
        )

    def _detach(self) -> None:
        self.memory.detach()

    def _scores(self, batch: Any) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.task.precision == "bf16"):
            positive, negative = self._logits(batch)
        return positive.float(), negative.float()

    def _logits(self, batch: Any) -> tuple[Tensor, Tensor]:
        nodes, edges, eid = self.neighbors(batch.n_id)
        self.local[nodes] = torch.arange(len(nodes), device=nodes.device)
        z, updated = self.memory(nodes)
        updated = self.task.encoded_to(updated, batch.t)
        z = self.embedding(z, updated, edges, self.data.t[eid], self.data.msg[eid])
        src = z[self.local[batch.src]]
        return (
            self.decoder(src, z[self.local[batch.dst]]),
            self.decoder(src, z[self.local[batch.neg_dst]]),
        )

    def _store(self, batch: Any) -> None:
        self.memory.update_state(batch.src, batch.dst, batch.t, batch.msg)
        self.neighbors.insert(batch.src, batch.dst)


class _Embedding(nn.Module):
    """One `TransformerConv` over the edges' features and time encodings."""

    def __init__(self, task: Task, time_enc: nn.Module) -> None:
        super().__init__()
        self.time_enc = time_enc
        self.conv = TransformerConv(
            task.dim,
            task.dim // task.heads,
            heads=task.heads,
            dropout=task.dropout,
            edge_dim=task.events.x_dim + task.dim,
        )

    def forward(self, x: Tensor, updated: Tensor, edges: Tensor, t: Tensor, msg: Tensor) -> Tensor:
        dt = (updated[edges[0]] - t).to(x.dtype)
        out: Tensor = self.conv(x, edges, torch.cat([self.time_enc(dt), msg], dim=-1))
        return out


class _PairDecoder(nn.Module):
    """A two-layer score of pairs of embeddings."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.src = nn.Linear(dim, dim)
        self.dst = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return the logit of each pair, float32 `[B]`."""
        out: Tensor = self.out((self.src(src) + self.dst(dst)).relu()).squeeze(-1)
        return out
