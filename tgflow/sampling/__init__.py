"""Temporal neighbor sampling: fixed-shape answers, the same at any thread count."""

from tgflow.choices import Strategy
from tgflow.sampling.hops import Hop, Hops, sample_hops
from tgflow.sampling.layers import Layer
from tgflow.sampling.neighbors import (
    decayed_neighbors,
    recent_neighbors,
    uniform_neighbors,
    window_neighbors,
)
from tgflow.sampling.rows import Neighbors, sample_neighbors
from tgflow.sampling.sampler import STRATEGIES, Sampler

__all__ = [
    "STRATEGIES",
    "Hop",
    "Hops",
    "Layer",
    "Neighbors",
    "Sampler",
    "Strategy",
    "decayed_neighbors",
    "recent_neighbors",
    "sample_hops",
    "sample_neighbors",
    "uniform_neighbors",
    "window_neighbors",
]
