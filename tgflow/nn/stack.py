"""Layers of temporal attention from a batch's input rows up to its roots, and their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt
from torch import Tensor, nn

from tgflow.batch import Block
from tgflow.nn.attention import AttentionLayer
from tgflow.nn.time_encoding import TimeEncoding
from tgflow.setting import check_ranges


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Settings of a model whose embeddings are those of an `AttentionStack`."""

    edge_x_dim: Annotated[int, Ge(0)] = 0
    """Width of the edge features."""
    node_x_dim: Annotated[int, Ge(0)] = 0
    """Width of the node features."""
    time_dim: Annotated[int, Ge(1)] = 100
    """Width of a time encoding."""
    embedding_dim: Annotated[int, Ge(1)] = 100
    """Width of a layer's output."""
    heads: Annotated[int, Ge(1)] = 2
    """Attention heads; divides `embedding_dim`."""
    layers: Annotated[int, Ge(1)] = 1
    """Layers of attention, which is how many hops are sampled."""
    neighbors: Annotated[int, Ge(1)] = 10
    """Neighbors per node and layer."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share of attention weights dropped in training."""
    pair_features: bool = True
    """Whether the decoder also reads the exact history of each pair, see `PairFeatures`; the
    paper's does not. Shown as NAME+pairs."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.embedding_dim % self.heads:
            raise ValueError(
                f"heads must divide embedding_dim, got {self.heads} and {self.embedding_dim}"
            )

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Neighbors per hop, as `TemporalModel.fanouts` has them."""
        return (self.neighbors,) * self.layers


class AttentionStack(nn.Module):
    """Layers of attention, each from the frontier below to its block's targets.

    Args:
        config: Widths, heads, layers and dropout.
        h_dim: Width of the input rows; 0 if nodes have none.
        time: The time encoding, which all layers share.
    """

    def __init__(self, config: AttentionConfig, h_dim: int, time: TimeEncoding) -> None:
        super().__init__()
        widths = [h_dim] + [config.embedding_dim] * (config.layers - 1)
        self.layers = nn.ModuleList(  # the roots' first, like the blocks
            AttentionLayer(
                time,
                h_dim=width,
                edge_x_dim=config.edge_x_dim,
                dim=config.embedding_dim,
                heads=config.heads,
                dropout=config.dropout,
            )
            for width in reversed(widths)
        )

    def forward(self, h: Tensor | None, blocks: Sequence[Block]) -> Tensor:
        """Return the embeddings of the top frontier, float32 `[N, embedding_dim]`.

        Args:
            h: Inputs of the lowest frontier, float32 `[U, h_dim]`, or None if `h_dim` is 0.
            blocks: One for each layer, from the roots down.

        Raises:
            ValueError: If the inputs or the edge features have another width.
        """
        for layer, block in zip(reversed(self.layers), reversed(blocks), strict=True):
            h = layer(h, block)
        assert h is not None
        return h
