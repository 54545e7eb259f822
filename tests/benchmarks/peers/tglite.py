"""TGLite's TGN and TGAT, put together from its operators as in its own `examples`.

TGLite 0.0.4 asks for Python below 3.11 and builds with C++14, which a current torch does not
accept; build it from its sdist with `-std=c++20` in `setup.py` and `pip install
--no-build-isolation --ignore-requires-python`. Its times are float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import tglite
import torch
from tglite.nn import TemporalAttnLayer, TimeEncode
from torch import Tensor, nn

from benchmarks.own import Task
from benchmarks.peers.decoder import PairDecoder
from benchmarks.race import link_loss


class _Tglite:
    """Base of both models: graph, sampler, loop, decoder."""

    def __init__(self, task: Task, hops: int) -> None:
        torch.manual_seed(task.seed)
        self.task, self.hops = task, hops
        self.random = np.random.default_rng(task.seed)
        events = task.events
        ends = torch.stack([events.src, events.dst], dim=1).int().numpy()
        self.graph = tglite.TGraph(ends, events.t.float().numpy(), task.num_nodes)
        self.graph.efeat = events.x
        self.graph.nfeat = torch.zeros(task.num_nodes, task.dim)
        self.context = tglite.TContext(self.graph)
        self.context.need_sampling(True)
        self.context.enable_time_precompute(True)
        self.sampler = tglite.TSampler(task.neighbors, "recent", torch.get_num_threads())
        self.layers = nn.ModuleList(self._layer() for _ in range(hops))
        self.decoder = PairDecoder(task.dim)
        self.modules = nn.ModuleList([self.layers, self.decoder])
        self._batches = self._load(0, task.train_stop)

    def _layer(self) -> nn.Module:
        task = self.task
        layer: nn.Module = TemporalAttnLayer(
            self.context,
            num_heads=task.heads,
            dim_node=task.dim,
            dim_edge=task.events.x_dim,
            dim_time=task.dim,
            dim_out=task.dim,
            dropout=task.dropout,
        )
        return layer

    def _learn(self, *modules: nn.Module) -> None:
        self.modules.extend(modules)
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=self.task.lr)

    def train(self, num_batches: int) -> list[float]:
        """Train on the next batches; returns their losses."""
        self.context.train()
        self.modules.train()
        return [self._step(batch) for batch in islice(self._batches, num_batches)]

    @torch.no_grad()
    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Score the held-out events, storing each batch after it is scored."""
        self.context.eval()
        self.modules.eval()
        held_out = self._load(self.task.train_stop, len(self.task.events))
        positive, negative = zip(*map(self._scores, held_out), strict=True)
        return torch.cat(positive), torch.cat(negative)

    def _load(self, start: int, stop: int) -> Iterator[Any]:
        first = int(self.task.events.dst.min())
        size = self.task.batch_size
        for batch in tglite.iter_edges(self.graph, size=size, start=start, end=stop):
            drawn = self.random.integers(first, self.task.num_nodes, len(batch))
            batch.neg_nodes = drawn.astype(np.int32)
            yield batch

    def _step(self, batch: Any) -> float:
        self.optimizer.zero_grad()
        loss = link_loss(*self._scores(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()

    def _scores(self, batch: Any) -> tuple[Tensor, Tensor]:
        head = tail = batch.block(self.context)
        for hop in range(self.hops):
            tail = head if hop == 0 else tail.next_block(include_dst=True)
            tail = self.sampler.sample(tglite.op.dedup(tail))
        tglite.op.preload(head, use_pin=False)
        self._read(tail)
        h = tglite.op.aggregate(head, list(reversed(self.layers)), key="h")
        src, dst, negative = batch.split_data(h)
        scores = self.decoder(src, dst), self.decoder(src, negative)
        self._store(batch)
        return scores

    def _read(self, block: Any) -> None:
        """Give the lowest block the inputs of its nodes."""
        block.dstdata["h"], block.srcdata["h"] = block.dstfeat(), block.srcfeat()

    def _store(self, batch: Any) -> None:
        """Store the batch's events as mail."""


class TgliteTgat(_Tglite):
    """Two hops of `TemporalAttnLayer`; nodes have no features."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, hops=2)
        self._learn()


class TgliteTgn(_Tglite):
    """`Memory` and `Mailbox` with a GRU cell under one `TemporalAttnLayer`."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, hops=1)
        mail_dim = 2 * task.dim + task.events.x_dim
        self.graph.mem = tglite.Memory(task.num_nodes, task.dim)
        self.graph.mailbox = tglite.Mailbox(task.num_nodes, 1, mail_dim)
        self.cell = nn.GRUCell(mail_dim + task.dim, task.dim)
        self.time = TimeEncode(task.dim)
        self._learn(self.cell, self.time)

    def _read(self, block: Any) -> None:
        nodes, graph = block.allnodes(), self.graph
        mail_time = graph.mailbox.time[nodes]
        age = (mail_time - graph.mem.time[nodes]).squeeze()
        encoded = tglite.op.precomputed_times(self.context, 0, self.time, age)
        memory = self.cell(torch.cat([block.mail(), encoded], dim=1), block.mem_data())
        graph.mem.update(nodes, memory, mail_time)
        h = block.nfeat() + memory
        block.dstdata["h"], block.srcdata["h"] = h[: block.num_dst()], h[block.num_dst() :]

    def _store(self, batch: Any) -> None:
        latest = tglite.op.coalesce(batch.block_adj(self.context), by="latest")
        own, other, eid = (
            torch.from_numpy(column).long()
            for column in (latest.dstnodes, latest.srcnodes, latest.eid)
        )
        memory = self.graph.mem.data
        mail = torch.cat([memory[own], memory[other], self.graph.efeat[eid]], dim=1)
        self.graph.mailbox.store(own, mail, torch.from_numpy(latest.ets))
