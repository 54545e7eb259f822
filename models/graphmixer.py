"""GraphMixer: Do We Really Need Complicated Model Architectures For Temporal Networks?

Cong, Zhang, Kang, Yuan, Wu, Zhou, Tong, Mahdavi; ICLR 2023, arXiv:2302.11636.

Differs from the paper:
    * A node's features are averaged over the same recent neighbors that its link encoder reads, not
      over all those within a time gap, and only where there are node features.
    * Frequencies of the time encoding are those of `tgflow.nn.TimeEncoding`, from 1 to 1e-9 per
      second; the paper's fall like sqrt(dim) ** -(i / sqrt(dim)), from 1 to 1e-10 of 100, in
      whatever unit its data has.
    * The token of a missing neighbor is all zeros, its time encoding included.
    * The last dropout is behind the mean over tokens, which saves a quarter of the products.
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
from tgflow.nn import LinkDecoder, Mixer, TimeEncoding, TokenProj
from tgflow.nn._native import gather_rows
from tgflow.nn.groups import PAIR_GROUPS
from tgflow.nn.linear import Linear
from tgflow.nn.model import Embeddings, FeatureConfig, TemporalModel, make_config
from tgflow.nn.tokens import gather_slots


@described
@dataclass(frozen=True, kw_only=True)
class GraphMixerConfig(FeatureConfig):
    """Settings of a GraphMixer; the defaults are the paper's, but for `dropout`."""

    embedding_dim: Annotated[int, Ge(1)] = 100
    """Width of a token and of an embedding."""
    neighbors: Annotated[int, Ge(1)] = 20
    """Recent events per node; published figures take 10 on Reddit and LastFM, 30 on Wikipedia."""
    layers: Annotated[int, Ge(1)] = 2
    """Number of mixer layers."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share dropped in training; published figures take up to 0.5, see DyGLib's settings."""
    pair_features: tuple[PairGroup, ...] = PAIR_GROUPS
    """Groups of the exact history of each pair that the decoder also reads, see `tgflow.nn.groups`;
    the paper's reads none. With any, shown as NAME+pairs."""


MAX_ROWS = 16_384
"""Nodes whose tokens are mixed at once."""


class GraphMixer(TemporalModel):
    """MLP-Mixer over the recent events of a node, without state or attention.

    Example:
        >>> model = tg.GraphMixer(neighbors=5)
        >>> model.fanouts
        (5,)
    """

    strategy = "recent"
    config_type = GraphMixerConfig
    counts_dtype = torch.float32

    def __init__(self, config: GraphMixerConfig | None = None, **settings: Any) -> None:
        super().__init__()
        self.config = c = make_config(GraphMixerConfig, config, settings)
        self.fanouts = (c.neighbors,)
        self.edge_x_dim, self.node_x_dim = c.edge_x_dim, c.node_x_dim
        dim = c.embedding_dim
        self.tokens = TokenProj(dim, TimeEncoding(c.time_dim), edge_x_dim=c.edge_x_dim)
        *mixers, self.last_mixer = (Mixer(c.neighbors, dim, c.dropout) for _ in range(c.layers))
        self.mixers = nn.Sequential(*mixers)
        self.out = Linear(dim + c.node_x_dim, dim)
        self.decoder = LinkDecoder(dim, pair_features=c.pair_features)
        self.counts, self.loss = self.decoder.counts, self.decoder.loss

    def embed(self, batch: Batch) -> Embeddings:
        (block,) = batch.blocks
        mixed = [
            self.last_mixer.mean(self.mixers(self.tokens(part, None)))
            for part in block.parts(MAX_ROWS)
        ]
        z = torch.cat(mixed) if len(mixed) > 1 else mixed[0]
        if batch.node_x is not None:
            mask = block.mask.unsqueeze(-1)
            total = (gather_slots(batch.node_x, block.neighbor) * mask).sum(dim=1)
            mean = total / mask.sum(dim=1).clamp(min=1)
            z = torch.cat([z, gather_rows(batch.node_x, block.target) + mean], dim=1)
        return Embeddings(self.out(z))
