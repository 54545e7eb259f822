"""Whole neighborhoods: all that a query sees, for hops whose fan-out is "all"."""

from __future__ import annotations

from dataclasses import replace

from tgflow.graph import Neighbors, TemporalGraph
from tgflow.sampler import Sampler
from tgflow.sampling.hops import HopQueries
from tgflow.sampling.rows import sample_neighbors

MAX_SLOTS = 1 << 23
"""Slots of neighbors that a hop may have; each takes 37 bytes, and what a model makes of it."""
_FEW = 16


class TooManyNeighbors(MemoryError):
    """A hop has more slots than it may: fewer queries at a time have fewer."""


def all_neighbors(graph: TemporalGraph, sampler: Sampler, asked: HopQueries) -> Neighbors:
    """Return all neighbors that the sampler might take of each query, newest first.

    Rows are as wide as the longest one. Synchronizes with a device.

    Args:
        graph: Graph to read.
        sampler: Whose `k` neighbors are all of them where `k` is large enough.
        asked: The queries; `k` is not read.

    Raises:
        TooManyNeighbors: If there are more than `MAX_SLOTS`.
    """
    size, k = len(asked.nodes), _FEW
    while True:
        if size * k > MAX_SLOTS and k > _FEW:
            raise TooManyNeighbors(
                f"all neighbors of {size:,} nodes, of some more than {k // 4:,}, are more than the "
                f"{MAX_SLOTS:,} slots that a hop may have: give a fan-out as a number"
            )
        found = sample_neighbors(
            graph, sampler, asked.nodes, asked.t, k,
            key=asked.key, as_of=asked.as_of, params=asked.params,
        )  # fmt: skip
        most = int(found.count.max()) if size else 0
        if most < k:
            return _narrowed(found, max(most, 1))
        k *= 4


def _narrowed(found: Neighbors, k: int) -> Neighbors:
    columns = {name: getattr(found, name)[:, :k].contiguous() for name in ("nodes", "t", "eid")}
    return replace(found, **columns)
