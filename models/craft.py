"""CRAFT: Future Link Prediction Without Memory or Aggregation, NeurIPS 2025, arXiv:2505.19408.

Yi, Lei, Mo, Zheng, Wei, Ye.

Differs from the paper:
    * Untrained nodes share an unknown row, see `tgflow.nn.NodeTable`; the authors' nodes are those
      of one file, and keep their initial rows. The model is transductive by nature: for new nodes
      it reads only the age of their latest event and the neighbors of their sources.
    * The age of a candidate's latest event, in either role, enters as log(1 + seconds) / 16, and
      "never" as its own vector; the authors' enters in raw seconds, and -1e5 for "never".
    * The count of a candidate among the source's recent neighbors (CRAFT-R) enters as log(1 +
      count), and by default: `repeats=False` is the CRAFT of streams without repeated pairs.
    * Batches are chronological, as everywhere in tgflow; the authors shuffle them in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn

from tgflow.base.describe import described
from tgflow.base.setting import check_ranges
from tgflow.graph.batch import Batch, Block
from tgflow.nn import CrossAttention, Dropout, MergeLayer, NodeTable, Pairs
from tgflow.nn._native import gather_rows
from tgflow.nn.linear import Linear
from tgflow.nn.model import Scores, TemporalModel, make_config
from tgflow.nn.tokens import gather_slots

MAX_PAIRS = 4096
"""Pairs scored at once: bounds memory, and does not change results."""


@described
@dataclass(frozen=True, kw_only=True)
class CRAFTConfig:
    """Settings of a CRAFT; the defaults are those of the authors for most data sets."""

    embedding_dim: Annotated[int, Ge(1)] = 64
    """Width of a node's row and of its representation."""
    heads: Annotated[int, Ge(1)] = 2
    """Attention heads; divides `embedding_dim`."""
    layers: Annotated[int, Ge(1)] = 2
    """Layers of cross-attention."""
    neighbors: Annotated[int, Ge(1)] = 30
    """Recent neighbors of the source that a candidate is compared with."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share dropped in training."""
    repeats: bool = True
    """Whether to read the count of a candidate among the source's recent neighbors."""
    table_size: Annotated[int, Ge(2)] = 1 << 14
    """Rows of the node table; larger ids share them. The cost of a step grows with it."""
    unknown: Annotated[float, Ge(0), Lt(1)] = 0.02
    """Share of the nodes read as unknown in training."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.embedding_dim % self.heads:
            raise ValueError(
                f"heads must divide embedding_dim, got {self.heads} and {self.embedding_dim}"
            )


class CRAFT(TemporalModel):
    """Cross-attention from a candidate's row to the rows of the source's recent neighbors.

    Example:
        >>> model = tg.CRAFT(neighbors=5)
        >>> model.loss
        'bpr'
    """

    strategy = "recent"
    loss = "bpr"
    config_type = CRAFTConfig

    def __init__(self, config: CRAFTConfig | None = None, **settings: Any) -> None:
        super().__init__()
        self.config = c = make_config(CRAFTConfig, config, settings)
        self.fanouts = (c.neighbors,)
        dim = c.embedding_dim
        self.table = NodeTable(c.table_size, dim, c.unknown)
        self.position = nn.Parameter(torch.randn(c.neighbors, dim) * dim**-0.5)
        self.key_norm, self.query_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.key_dropout = Dropout(c.dropout)
        self.attention = nn.ModuleList(
            CrossAttention(dim, c.heads, c.dropout) for _ in range(c.layers)
        )
        self.age, self.age_norm = Linear(1, dim), nn.LayerNorm(dim)
        self.never = nn.Parameter(torch.zeros(dim))
        self.count = Linear(1, dim) if c.repeats else None
        self.count_norm = nn.LayerNorm(dim) if c.repeats else None
        self.out = MergeLayer(dim, dim * (2 if c.repeats else 1), dim, 1)

    def forward(self, batch: Batch) -> Scores:
        (block,) = batch.blocks
        is_used = torch.zeros_like(batch.nodes, dtype=torch.bool)  # False for padding
        is_used.index_fill_(0, block.target, True).index_fill_(0, block.neighbor.flatten(), True)
        rows, pairs = self.table(batch.nodes, is_used), Pairs.of(batch)
        source, group = pairs.distinct_sources(len(block.target))
        met, mask = block.neighbor.index_select(0, source), block.mask.index_select(0, source)
        tokens = self.key_dropout(self.key_norm(gather_slots(rows, met) + self.position))
        keys = [layer.keys(tokens) for layer in self.attention]  # type: ignore[operator]

        def logits(chunk: Pairs) -> Tensor:
            group, candidate = chunk.src_row, block.target.index_select(0, chunk.dst_row)
            x = self.query_norm(gather_rows(rows, candidate))
            for layer, made in zip(self.attention, keys, strict=True):
                x = layer(x, made, mask, group)
            known = [self._age(block, chunk.dst_row)]
            if self.count is not None and self.count_norm is not None:
                is_met = (met.index_select(0, group) == candidate.unsqueeze(1)) & mask[group]
                times = is_met.sum(dim=1, keepdim=True)
                known.append(self.count_norm(self.count(times.to(x.dtype).log1p())))
            out: Tensor = self.out(x, torch.cat(known, dim=1))
            return out.squeeze(-1)

        return pairs.scores(Pairs(group, pairs.dst_row).logits(logits, MAX_PAIRS), batch)

    def marks(self) -> list[Tensor]:
        return [self.table.seen]

    def _age(self, block: Block, row: Tensor) -> Tensor:
        """Return the encoded age of each row's latest event, `[P, dim]`."""
        seconds, ever = block.dt[:, :1].index_select(0, row), block.mask[:, :1].index_select(0, row)
        age: Tensor = self.age_norm(torch.where(ever, self.age(seconds.log1p() / 16), self.never))
        return age
