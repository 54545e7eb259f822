"""TPNet: Improving Temporal Link Prediction via Temporal Walk Matrix Projection, arXiv:2410.04013.

Lu, Sun, Zhu, Lv; NeurIPS 2024.

Differs from the paper:
    * R has random signs instead of normal numbers: an equally good projection that needs no
      storage, and is the same on every device.
    * Walks decay up to the very time of a query, not up to the end of the batch before.
    * The 36 distinct products of two nodes' walks are read, not all 64 of a symmetric matrix.
    * Empty slots hold zeros; a mask in the authors' code has no effect, so that theirs encode the
      absolute time.
    * R is the same in all epochs; the authors' code draws a new one for each.
    * The last dropout is behind the mean over tokens, which saves a seventh of the products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn
from torch.nn import functional as F

from tgflow.base.describe import described
from tgflow.graph.batch import Batch, Block
from tgflow.nn import LogTimeEncoding, MergeLayer, Mixer, NodeMemory, Pairs, TokenProj
from tgflow.nn._native import gather_rows
from tgflow.nn.linear import Linear
from tgflow.nn.memory_table import MemoryPlacement, memory_table
from tgflow.nn.messages import Messages, NewEvents
from tgflow.nn.model import Embeddings, FeatureConfig, Scores, TemporalModel, make_config
from tgflow.nn.walks import WalkProjection, WalkRows, near_features, num_features, row_times

WALK_DIM = 64
"""Width of the feature f(u, v) of a pair."""
MAX_PAIRS = 1024
"""Pairs scored at a time, unless gradients keep the inputs of all of them."""


@described
@dataclass(frozen=True, kw_only=True)
class TPNetConfig(FeatureConfig):
    """Settings of a TPNet; the defaults are the paper's, but for widths of 172."""

    embedding_dim: Annotated[int, Ge(1)] = 100
    """Width of a token and of an embedding."""
    neighbors: Annotated[int, Ge(1)] = 20
    """Recent events per node."""
    layers: Annotated[int, Ge(1)] = 2
    """Number of mixer layers."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share of the mixers' elements dropped in training."""
    walk_length: Annotated[int, Ge(1)] = 3
    """Events of the longest walks."""
    walk_dim: Annotated[int, Ge(1)] = 120
    """Width of a node's projection of walks of one length; the paper's is 10 * floor(ln(2 E)) for E
    events, at most the number of nodes."""
    walk_decay: Annotated[float, Ge(0)] = 1e-6
    """Decay of a walk per event and second: 1e-4 for contacts, 1e-6 for mail, 1e-7 for chats."""
    memory_placement: MemoryPlacement = "model"
    """Placement of walks, see `tgflow.nn.memory_table`: "uva" if a GPU is too small."""


class TPNet(TemporalModel):
    """Mixes a node's recent events, each with its walks to both nodes of the pair.

    Example:
        >>> tg.TPNet(neighbors=5).fanouts
        (5,)
    """

    strategy = "recent"
    config_type = TPNetConfig
    state: NodeMemory

    def __init__(self, config: TPNetConfig | None = None, **settings: Any) -> None:
        super().__init__()
        self.config = c = make_config(TPNetConfig, config, settings)
        self.fanouts = (c.neighbors,)
        self.edge_x_dim, self.node_x_dim = c.edge_x_dim, c.node_x_dim
        self.walks = walks = WalkProjection(c.walk_dim, c.walk_length, c.walk_decay)
        width = walks.dim * walks.hops
        self.state = walks.memory(memory_table(width, c.memory_placement))
        dim = c.embedding_dim
        self.walk_map = MergeLayer(num_features(c.walk_length), 0, 4 * WALK_DIM, WALK_DIM)
        self.own_proj = TokenProj(
            2 * dim, LogTimeEncoding(c.time_dim), node_x_dim=c.node_x_dim,
            edge_x_dim=c.edge_x_dim, extra_dim=WALK_DIM,
        )  # fmt: skip
        self.other_proj = Linear(WALK_DIM, 2 * dim, bias=False)
        self.token_proj = Linear(2 * dim, dim)
        self.mixers = nn.Sequential(*(Mixer(c.neighbors, dim, c.dropout) for _ in range(c.layers)))
        self.decoder = MergeLayer(2 * dim, WALK_DIM, dim, 1)

    def forward(self, batch: Batch) -> Scores:
        self.check_widths(batch)
        pairs, block = Pairs.of(batch), batch.blocks[0]
        walks, t = self.walks.read(self.state, batch), row_times(batch, pairs)
        near = near_features(walks, self.walk_map, block.neighbor, block.target, t, block.mask)
        own = self.own_proj(block, batch.node_x, near)  # for all its pairs

        def score(part: Pairs) -> Tensor:
            return self._score(part, own, block, walks, t)

        size = pairs.num_pairs if torch.is_grad_enabled() else MAX_PAIRS
        return pairs.scores(pairs.logits(score, max(size, 1)), batch)._replace(carry=walks)

    def _score(self, pairs: Pairs, own: Tensor, block: Block, walks: WalkRows, t: Tensor) -> Tensor:
        src, dst, target = pairs.src_row, pairs.dst_row, block.target
        row, other = torch.cat([src, dst]), torch.cat([dst, src])
        mask = block.mask[row]
        near = near_features(
            walks, self.walk_map, block.neighbor[row], target[other], t[row], mask, self.other_proj
        )
        token = gather_rows(own.flatten(1), row).view(near.shape).add(near)
        token = self.mixers[:-1](self.token_proj(F.relu(token)))
        z = self.mixers[-1].mean(token)  # type: ignore[operator]
        pair = walks.features(
            target[src], target[dst], t[src], torch.ones_like(mask[: len(src), 0])
        )
        both = torch.cat(z.tensor_split(2), dim=1)
        logits: Tensor = self.decoder(both, self.walk_map(pair, None)).squeeze(1)
        return logits

    def messages(self, batch: Batch, found: Scores | Embeddings) -> Messages:
        """Return the walks through the new events, and the earlier ones of their nodes."""
        return self.walks.messages(batch, found.carry)

    def store(self, events: NewEvents, messages: Messages) -> None:
        self.walks.write(self.state, events, messages)
