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


def graph_stats(stats: Any, num_tiers: int) -> GraphStats:
    """Return the statistics from a backend's counters, for one tier or two."""
    tiers, reads = (stats.device, stats.host)[:num_tiers], max(1, sum(stats.reads))
    made = [
        TierStats(
            name,
            tier.num_blocks,
            _unused(tier.num_entries, tier.capacity),
            tier.bytes,
            hits / reads if num_tiers > 1 else 1.0,
        )
        for name, tier, hits in zip(("device", "host"), tiers, stats.reads, strict=False)
    ]
    num_blocks = sum(tier.num_blocks for tier in made)
    slack = _unused(sum(x.num_entries for x in tiers), sum(x.capacity for x in tiers))
    sizes = stats.num_entries, num_blocks, stats.max_blocks, slack, stats.bytes
    return GraphStats(*sizes, tuple(made))


def _unused(num_entries: int, capacity: int) -> float:
    return 1 - num_entries / capacity if capacity else 0.0
