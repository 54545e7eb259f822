"""Temporal neighbor sampling with fixed-shape results, identical at any thread count."""

from tgflow.choices import Strategy
from tgflow.graph import Neighbors
from tgflow.sampler import STRATEGIES, Sampler
from tgflow.sampling.blocks import BipartiteBlock, to_blocks, to_dgl, to_pyg
from tgflow.sampling.expand import Frontier
from tgflow.sampling.hops import Hops, sample_hops
from tgflow.sampling.neighbors import (
    decayed_neighbors,
    recent_neighbors,
    uniform_neighbors,
    window_neighbors,
)
from tgflow.sampling.rows import sample_neighbors

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
