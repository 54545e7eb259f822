"""Temporal neighbor sampling with fixed-shape results, identical at any thread count."""

from tgflow.base.choices import Strategy
from tgflow.graph import Neighbors
from tgflow.graph.sampling.blocks import BipartiteBlock, to_blocks, to_dgl, to_pyg
from tgflow.graph.sampling.expand import Frontier
from tgflow.graph.sampling.hops import Hops, sample_hops
from tgflow.graph.sampling.neighbors import (
    decayed_neighbors,
    recent_neighbors,
    uniform_neighbors,
    window_neighbors,
)
from tgflow.graph.sampling.rows import sample_neighbors
from tgflow.graph.strategies import STRATEGIES, Sampler

__all__ = [
    "STRATEGIES",
    "BipartiteBlock",
    "Frontier",
    "Hops",
    "Neighbors",
    "Sampler",
    "Strategy",
    "decayed_neighbors",
    "recent_neighbors",
    "sample_hops",
    "sample_neighbors",
    "to_blocks",
    "to_dgl",
    "to_pyg",
    "uniform_neighbors",
    "window_neighbors",
]
