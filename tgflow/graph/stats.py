"""Statistics of the block store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TierStats:
    """What one tier of the block store holds."""

    name: str
    """"device" holds recent blocks, "host" older ones; without a budget all are in one tier."""
    num_blocks: int
    """On the CPU with those of older versions, kept for earlier cut-offs until `compact`."""
    slack: float
    """Share of the room of these blocks that is unused."""
    bytes: int
    """Memory of the tier's blocks, with what waits for reuse."""
    hit_rate: float
    """Share of the neighbors sampled so far that came from this tier."""


@dataclass(frozen=True, slots=True)
class GraphStats:
    """What the block store holds and what it costs."""

    num_entries: int
    """Neighbors that the latest snapshot sees: two an event, one for self-loops and in directed
    graphs."""
    num_blocks: int
    """Of all tiers, on the CPU with those of older versions, kept for earlier cut-offs until
    `compact`."""
    max_blocks: int
    """Blocks of the node that has most."""
    slack: float
    """Share of the room of these blocks, older versions' included, that is unused."""
    bytes: int
    """All memory of the store: blocks, directories, heads, and what waits for reuse."""
    tiers: tuple[TierStats, ...]
    """The same of each tier, device first."""


def graph_stats(stats: Any, num_tiers: int) -> GraphStats:
    """Return what a backend has counted, of one tier or two."""
    tiers = (stats.device, stats.host)[:num_tiers]
    return GraphStats(
        num_entries=stats.num_entries,
        num_blocks=sum(tier.num_blocks for tier in tiers),
        max_blocks=stats.max_blocks,
        slack=_unused(
            sum(tier.num_entries for tier in tiers), sum(tier.capacity for tier in tiers)
        ),
        bytes=stats.bytes,
        tiers=tuple(
            TierStats(
                name,
                tier.num_blocks,
                _unused(tier.num_entries, tier.capacity),
                tier.bytes,
                hits / max(1, sum(stats.reads)) if num_tiers > 1 else 1.0,
            )
            for name, tier, hits in zip(("device", "host"), tiers, stats.reads, strict=False)
        ),
    )


def _unused(num_entries: int, capacity: int) -> float:
    return 1 - num_entries / capacity if capacity else 0.0
