"""JODIE: Predicting Dynamic Embedding Trajectory in Temporal Interaction Networks.

Kumar, Zhang, Leskovec; KDD 2019, arXiv:1908.01207. Here in the form used in the comparison of TGN's
authors: a memory updated by a recurrent cell, projected to the time of the query.

Differs from the paper:
    * One table and one cell serve sources and destinations, and a score is the logit of an event:
      the paper has two of each, and predicts the item's embedding, so that it ranks by distance.
      Its static one-hot ids are omitted, as they are useless for nodes not seen in training.
    * Memory is as of a batch's start, and a node keeps the last message of a batch; the paper's
      t-batches update it after every event. The elapsed time is that since the node's latest event
      before the query, also where that event is of the same batch.
    * The elapsed time d enters the projection as log(1 + d) / 8 - 1, which is between -1 and 1 up
      to three months. Published code scales it by mean and deviation over all training events,
      which are unknown in a stream.
    * Node features enter through a linear map, so that they may have any width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import nn

from tgflow.base.choices import PairGroup
from tgflow.base.describe import described
from tgflow.graph.batch import Batch
from tgflow.nn import Dropout, LinkDecoder, MemoryUpdater, NodeMemory, TimeEncoding
from tgflow.nn._native import gather_rows
from tgflow.nn.groups import PAIR_GROUPS
from tgflow.nn.linear import Linear
from tgflow.nn.mail import UpdatedMemory, mail_messages, store_mail
from tgflow.nn.memory_table import MemoryPlacement, memory_table
from tgflow.nn.messages import Messages, NewEvents
from tgflow.nn.model import Embeddings, FeatureConfig, Scores, TemporalModel, make_config
from tgflow.nn.updater import Cell


@described
@dataclass(frozen=True, kw_only=True)
class JODIEConfig(FeatureConfig):
    """Settings of a JODIE; widths are those of TGN."""

    memory_dim: Annotated[int, Ge(1)] = 100
    """Width of a node's memory, and of its embedding."""
    memory_updater: Cell = "rnn"
    """Recurrent cell that updates memory from messages."""
    memory_placement: MemoryPlacement = "model"
    """Placement of memory and mail, see `tgflow.nn.memory_table`: "uva" if a GPU is too small."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share of an embedding's elements dropped in training."""
    pair_features: tuple[PairGroup, ...] = PAIR_GROUPS
    """Groups of the exact history of each pair that the decoder also reads, see `tgflow.nn.groups`;
    the paper's reads none. With any, shown as NAME+pairs."""


class JODIE(TemporalModel):
    """A memory per node, updated by mail, projected along the time since the node's latest event.

    Example:
        >>> model = tg.JODIE(memory_dim=32)
        >>> model.config.dropout
        0.1
    """

    strategy = "recent"
    fanouts = (1,)  # the latest event of a node, for its time alone
    config_type = JODIEConfig
    counts_dtype = torch.float32
    state: NodeMemory

    def __init__(self, config: JODIEConfig | None = None, **settings: Any) -> None:
        super().__init__()
        self.config = c = make_config(JODIEConfig, config, settings)
        self.edge_x_dim, self.node_x_dim = c.edge_x_dim, c.node_x_dim
        mail_dim = c.memory_dim + c.edge_x_dim
        rows = memory_table(c.memory_dim + mail_dim, c.memory_placement)
        self.state = NodeMemory(c.memory_dim, mail_dim, rows)
        time = TimeEncoding(c.time_dim)
        self.updater = MemoryUpdater(c.memory_dim, mail_dim, time, c.memory_updater)
        self.node_x_proj = Linear(c.node_x_dim, c.memory_dim) if c.node_x_dim else None
        self.drift = Linear(1, c.memory_dim)
        nn.init.normal_(self.drift.weight, std=c.memory_dim**-0.5)
        nn.init.zeros_(self.drift.bias)
        self.dropout = Dropout(c.dropout)
        self.decoder = LinkDecoder(c.memory_dim, pair_features=c.pair_features)
        self.counts, self.loss = self.decoder.counts, self.decoder.loss

    def embed(self, batch: Batch) -> Embeddings:
        rows = self.state.read(batch.nodes, batch.position, batch.since)
        memory = self.updater(rows, batch.seconds_per_tick)
        h = memory if self.node_x_proj is None else memory + self.node_x_proj(batch.node_x)
        (latest,) = batch.blocks
        drift = self.drift(latest.dt.log1p() / 8 - 1)
        z = self.dropout(gather_rows(h, latest.target) * (1 + drift))
        return Embeddings(z, UpdatedMemory(rows, memory.detach()))

    def messages(self, batch: Batch, found: Scores | Embeddings) -> Messages:
        """Return the updated memory of the new events' nodes, and these events as mail to them.

        The memory is the one that `found` was computed from.
        """
        return mail_messages(batch, found.carry, "last")

    def store(self, events: NewEvents, messages: Messages) -> None:
        store_mail(self.state, events, messages, "last")
