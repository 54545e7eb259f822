"""TGN: Temporal Graph Networks for Deep Learning on Dynamic Graphs, arXiv:2006.10637.

Rossi, Chamberlain, Frasca, Eynard, Monti, Bronstein; ICML 2020 Workshop on Graph Representation
Learning. Here: identity messages, last or mean aggregation, a GRU or RNN memory, attention
embeddings (TGN-attn).

Differs from the paper:
    * The attention has no output projection: the merge layer's first map follows it with nothing
      in between, so the projection would add parameters, but no function.
    * The time in a message is that since the memory's last update when the message is used, also
      under mean aggregation; the authors' code averages one per event.
    * Time encodings have fixed frequencies; see `tgflow.nn.TimeEncoding` for why.
    * A node's first message has dt = 0, not the time since tick 0, which for Unix time is 50 years.
    * Node features enter through a linear map, so that they may have any width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge

from tgflow.base.describe import described
from tgflow.graph.batch import Batch
from tgflow.nn import (
    AttentionConfig,
    AttentionStack,
    LinkDecoder,
    MemoryUpdater,
    NodeMemory,
    TimeEncoding,
)
from tgflow.nn.linear import Linear
from tgflow.nn.mail import Aggregator, UpdatedMemory, mail_messages, store_mail
from tgflow.nn.memory_table import MemoryPlacement, memory_table
from tgflow.nn.messages import Messages, NewEvents
from tgflow.nn.model import Embeddings, Scores, TemporalModel, make_config
from tgflow.nn.updater import Cell


@described
@dataclass(frozen=True, kw_only=True)
class TGNConfig(AttentionConfig):
    """Settings of a TGN; the defaults are the paper's, but for widths of 172 where features are."""

    memory_dim: Annotated[int, Ge(1)] = 100
    """Width of a node's memory."""
    memory_updater: Cell = "gru"
    """Recurrent cell that updates memory from messages."""
    aggregator: Aggregator = "last"
    """Aggregation of several messages to one node in a batch."""
    memory_placement: MemoryPlacement = "model"
    """Placement of memory and mail, see `tgflow.nn.memory_table`: "uva" if a GPU is too small."""


class TGN(TemporalModel):
    """A memory per node, updated by mail, read through attention over recent neighbors.

    Example:
        >>> model = tg.TGN(memory_dim=32)
        >>> model.fanouts
        (10,)
    """

    strategy = "recent"
    takes_any_fanouts = True
    config_type = TGNConfig
    counts_dtype = torch.float32
    state: NodeMemory

    def __init__(self, config: TGNConfig | None = None, **settings: Any) -> None:
        super().__init__()
        self.config = c = make_config(TGNConfig, config, settings)
        self.fanouts = c.fanouts
        self.edge_x_dim, self.node_x_dim = c.edge_x_dim, c.node_x_dim
        mail_dim = c.memory_dim + c.edge_x_dim
        rows = memory_table(c.memory_dim + mail_dim, c.memory_placement)
        self.state = NodeMemory(c.memory_dim, mail_dim, rows)
        time = TimeEncoding(c.time_dim)
        self.updater = MemoryUpdater(c.memory_dim, mail_dim, time, c.memory_updater)
        self.node_x_proj = Linear(c.node_x_dim, c.memory_dim) if c.node_x_dim else None
        self.encoder = AttentionStack(c, c.memory_dim, time)
        self.decoder = LinkDecoder(
            c.embedding_dim, pair_features=c.pair_features, num_relations=c.num_relations
        )
        self.counts, self.loss = self.decoder.counts, self.decoder.loss

    def embed(self, batch: Batch) -> Embeddings:
        rows = self.state.read(batch.nodes, batch.position, batch.since)
        memory = self.updater(rows, batch.seconds_per_tick)
        h = memory if self.node_x_proj is None else memory + self.node_x_proj(batch.node_x)
        z = self.encoder(h, batch.blocks)
        return Embeddings(z, UpdatedMemory(rows, memory.detach()))

    def messages(self, batch: Batch, found: Scores | Embeddings) -> Messages:
        """Return the updated memory of the new events' nodes, and these events as mail to them.

        The memory is the one that `found` was computed from.
        """
        return mail_messages(batch, found.carry, self.config.aggregator)

    def store(self, events: NewEvents, messages: Messages) -> None:
        store_mail(self.state, events, messages, self.config.aggregator)
