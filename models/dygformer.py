"""DyGFormer: Towards Better Dynamic Graph Learning, arXiv:2303.13047.

Yu, Sun, Du, Lv; NeurIPS 2023.

Differs from the paper:
    * Sequences always have `length` tokens, not as many as the longest of the batch, so that a
      pair's score does not depend on other pairs in the batch.
    * Tokens are ordered from newest to oldest, so that patches keep their contents as a short
      history grows; without positions, and with patches of one token, that is the same.
    * Time encodings have fixed frequencies; see `tgflow.nn.TimeEncoding` for why.
    * Without node or edge features their channels are omitted; the authors' read zeros.
    * The last dropout is behind the mean over patches, which saves a sixth of the products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn

from tgflow.base.describe import described
from tgflow.graph.batch import Batch
from tgflow.nn import MergeLayer, Pairs, TimeEncoding
from tgflow.nn._native import gather_rows
from tgflow.nn.co_occurrence import CoOccurrenceEncoding, co_occurrence
from tgflow.nn.layers import TransformerLayer
from tgflow.nn.linear import Linear
from tgflow.nn.model import FeatureConfig, Scores, TemporalModel, make_config

MAX_TOKENS = 1 << 16
"""Tokens scored at a time, unless gradients keep the inputs of all of them."""


@described
@dataclass(frozen=True, kw_only=True)
class DyGFormerConfig(FeatureConfig):
    """Settings of a DyGFormer; the defaults are the paper's, but for widths of 172."""

    channel_dim: Annotated[int, Ge(1)] = 50
    """Width of each channel: node, edge, time and co-occurrence."""
    embedding_dim: Annotated[int, Ge(1)] = 100
    """Width of an embedding."""
    length: Annotated[int, Ge(2)] = 32
    """Tokens of a node: the node itself, and its recent events."""
    patch: Annotated[int, Ge(1)] = 1
    """Neighboring tokens merged into one for the transformer; divides `length`."""
    layers: Annotated[int, Ge(1)] = 2
    """Layers of the transformer."""
    heads: Annotated[int, Ge(1)] = 2
    """Attention heads; divides the width of all channels."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share of the transformer's elements dropped in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length % self.patch:
            raise ValueError(f"patch must divide length, got {self.patch} and {self.length}")


class DyGFormer(TemporalModel):
    """A transformer over the recent events of both nodes, with counts of shared neighbors.

    Example:
        >>> tg.DyGFormer(length=16).config.length
        16
    """

    strategy = "recent"
    config_type = DyGFormerConfig

    def __init__(self, config: DyGFormerConfig | None = None, **settings: Any) -> None:
        super().__init__()
        self.config = c = make_config(DyGFormerConfig, config, settings)
        self.fanouts = (c.length - 1,)
        self.edge_x_dim, self.node_x_dim = c.edge_x_dim, c.node_x_dim
        self.time = TimeEncoding(c.time_dim)
        widths = {"node": c.node_x_dim, "edge": c.edge_x_dim, "time": c.time_dim}
        self.channels = nn.ModuleDict(
            {n: Linear(c.patch * width, c.channel_dim) for n, width in widths.items() if width}
        )
        self.shared = CoOccurrenceEncoding(c.length, c.patch, c.channel_dim, c.channel_dim)
        dim = c.channel_dim * (1 + len(self.channels))
        self.transformer = nn.Sequential(
            *(TransformerLayer(dim, c.heads, c.dropout) for _ in range(c.layers))
        )
        self.out = Linear(dim, c.embedding_dim)
        self.decoder = MergeLayer(c.embedding_dim, c.embedding_dim, c.embedding_dim, 1)

    def forward(self, batch: Batch) -> Scores:
        self.check_widths(batch)
        pairs, own = Pairs.of(batch), self._own_patches(batch)

        def score(part: Pairs) -> Tensor:
            return self._score(part, own, co_occurrence(batch, part))

        size = pairs.num_pairs if torch.is_grad_enabled() else MAX_TOKENS // (2 * own.shape[1])
        return pairs.scores(pairs.logits(score, max(size, 1)), batch)

    def _own_patches(self, batch: Batch) -> Tensor:
        """Return the projected patches of a row, for all its pairs, `[N, length / patch, dim]`."""
        block = batch.blocks[0]
        num, k = block.mask.shape
        mask = block.mask.unsqueeze(-1)
        tokens = {"time": (self.time.at_zero().expand(num, 1, -1), self.time(block.dt) * mask)}
        if block.edge_x is not None:
            edge_x = block.edge_x
            tokens["edge"] = edge_x.new_zeros(num, 1, edge_x.shape[2]), edge_x
        if batch.node_x is not None:
            neighbor_x = batch.node_x[block.neighbor] * mask
            tokens["node"] = batch.node_x[block.target].unsqueeze(1), neighbor_x
        patch = self.config.patch
        patches = []
        for name, proj in self.channels.items():
            x = torch.cat(tokens[name], dim=1)
            patches.append(proj(x.view(num, (1 + k) // patch, patch * x.shape[2])))
        return torch.cat(patches, dim=2)

    def _score(self, pairs: Pairs, own: Tensor, counts: Tensor) -> Tensor:
        rows = torch.stack([pairs.src_row, pairs.dst_row], dim=1).flatten()
        of_nodes = gather_rows(own.flatten(1), rows).view(len(counts), 2, *own.shape[1:])
        x = torch.cat([of_nodes, self.shared(counts)], dim=-1)
        x = self.transformer[:-1](x.flatten(1, 2))
        z = self.transformer[-1].means(x, 2)  # type: ignore[operator]
        src, dst = self.out(z).unbind(1)
        logits: Tensor = self.decoder(src, dst).squeeze(1)
        return logits
