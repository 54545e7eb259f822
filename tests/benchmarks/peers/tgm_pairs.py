"""TGM's DyGFormer and TPNet (`tgm-lib`), put together as in its own link-prediction examples.

Features that the task does not have are a column of zeros, as there; DyGFormer has its four
channels all the same.
"""

from typing import Any

import torch
from tgm.nn.encoder.dygformer import DyGFormer
from tgm.nn.encoder.tpnet import RandomProjectionModule, TPNet
from torch import Tensor, nn

from benchmarks.own import Task
from benchmarks.peers.tgm import Tgm
from tgflow.models import DyGFormerConfig, TPNetConfig


class _TgmPairs(Tgm):
    """Base of both models: joint encoder of two nodes, for an event and then for a negative."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, hops=1)
        self.node_x = torch.zeros(task.num_nodes, 1)
        self.edge_dim = max(task.events.x_dim, 1)

    def _scores(self, batch: Any) -> tuple[Tensor, Tensor]:
        size = len(batch.edge_src)
        positive = self._logits(batch, batch.edge_dst, slice(size, 2 * size))
        return positive, self._logits(batch, batch.neg, slice(2 * size, 3 * size))

    def _logits(self, batch: Any, dst: Tensor, rows: slice) -> Tensor:
        """Return the logits of events to `dst`, whose neighbors are in `rows`."""
        nodes, t, edge_x = (
            torch.cat([hop[0][: len(dst)], hop[0][rows]])
            for hop in (batch.nbr_nids, batch.nbr_edge_time, batch.nbr_edge_x)
        )
        if edge_x.shape[-1] == 0:
            edge_x = edge_x.new_zeros(*nodes.shape, 1)
        pairs = torch.stack([batch.edge_src, dst]).long()
        embedded = self.encoder(self.node_x, pairs, batch.edge_time, nodes.long(), t, edge_x)
        logits: Tensor = self.decoder(*embedded)
        return logits

    encoder: nn.Module


class TgmDyGFormer(_TgmPairs):
    """`DyGFormer` with patches of one token."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.encoder = DyGFormer(
            node_feat_dim=1,
            edge_feat_dim=self.edge_dim,
            time_feat_dim=task.dim,
            channel_embedding_dim=DyGFormerConfig.channel_dim,
            output_dim=task.dim,
            dropout=task.dropout,
            max_input_sequence_length=1 + task.neighbors,
        )
        self._learn(self.encoder)


class TgmTPNet(_TgmPairs):
    """`TPNet` on a `RandomProjectionModule` of both nodes, as in its paper."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.walks = RandomProjectionModule(
            num_nodes=task.num_nodes,
            num_layer=TPNetConfig.walk_length,
            time_decay_weight=TPNetConfig.walk_decay,
            beginning_time=float(task.events.t[0]),
            use_matrix=False,
            enforce_dim=TPNetConfig.walk_dim,
        )
        self.encoder = TPNet(
            node_feat_dim=1,
            edge_feat_dim=self.edge_dim,
            time_feat_dim=task.dim,
            output_dim=task.dim,
            num_neighbors=task.neighbors,
            dropout=task.dropout,
            random_projections=self.walks,
        )
        self._learn(self.encoder)

    def _store(self, batch: Any) -> None:
        self.walks.update(batch.edge_src.long(), batch.edge_dst.long(), batch.edge_time)
