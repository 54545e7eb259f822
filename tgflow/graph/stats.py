"""Statistics of the block store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TierStats:
    """Size of one tier of the block store."""

    name: str
    """"device" holds recent blocks, "host" older ones; without a budget all are in one tier."""
    num_blocks: int
    """Blocks; on the CPU including older versions, kept for earlier cut-offs until `compact`."""
    slack: float
    """Unused share of the capacity of these blocks."""
    bytes: int
    """Memory of the tier's blocks, including memory pending reuse."""
    hit_rate: float
    """Share of the neighbors sampled so far that came from this tier."""


@dataclass(frozen=True, slots=True)
class GraphStats:
    """Size and memory of the block store."""

    num_entries: int
    """Neighbors in the latest snapshot: two per event, one for self-loops and in directed
    graphs."""
    num_blocks: int
    """In all tiers; on the CPU including older versions, kept for earlier cut-offs until
    `compact`."""
    max_blocks: int
    """Largest number of blocks of a node."""
    slack: float
    """Unused share of the capacity of these blocks, including older versions."""
    bytes: int
    """All memory of the store: blocks, directories, heads, and memory pending reuse."""
    tiers: tuple[TierStats, ...]
    """Statistics of each tier, device first."""


def graph_stats(stats: tuple[Any, ...], num_tiers: int) -> GraphStats:
    """Return the statistics from a backend's `StoreCounts`, for one tier or two."""
    num_entries, max_blocks, bytes, reads, tiers = stats
    made = []
    for name, tier, hits in zip(("device", "host"), tiers[:num_tiers], reads, strict=False):
        rate = hits / max(1, sum(reads)) if num_tiers > 1 else 1.0
        made.append(TierStats(name, tier[0], _unused(tier[1], tier[2]), tier[3], rate))
    num_blocks, used, capacity, _ = map(sum, zip(*tiers[:num_tiers], strict=True))
    slack = _unused(used, capacity)
    return GraphStats(num_entries, num_blocks, max_blocks, slack, bytes, tuple(made))


def _unused(num_entries: int, capacity: int) -> float:
    return 1 - num_entries / capacity if capacity else 0.0
