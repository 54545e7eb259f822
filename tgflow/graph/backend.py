"""Interface of the graph backends, in host memory and on a GPU, and their statistics."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph._native import Log
from tgflow.graph.query import Neighbors, Queries
from tgflow.sampler import Sampler


class TierCounts(Protocol):
    """What a backend has counted in one tier."""

    @property
    def num_blocks(self) -> int:
        """Blocks."""
        ...

    @property
    def num_entries(self) -> int:
        """Entries in them."""
        ...

    @property
    def capacity(self) -> int:
        """Entries that they have room for."""
        ...

    @property
    def bytes(self) -> int:
        """Memory of the tier's blocks, with what waits for reuse."""
        ...


class StoreCounts(Protocol):
    """What a backend has counted."""

    @property
    def num_entries(self) -> int:
        """Entries that the latest snapshot sees."""
        ...

    @property
    def max_blocks(self) -> int:
        """Blocks of the node that has most."""
        ...

    @property
    def bytes(self) -> int:
        """All memory of the store."""
        ...

    @property
    def reads(self) -> tuple[int, int]:
        """Neighbors read from each tier, counted where there is a budget."""
        ...

    @property
    def device(self) -> TierCounts:
        """The tier of recent blocks."""
        ...

    @property
    def host(self) -> TierCounts:
        """The tier of older blocks."""
        ...


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


def graph_stats(stats: StoreCounts, num_tiers: int) -> GraphStats:
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


class GraphBackend(Protocol):
    """Neighborhoods and the log behind them. One thread writes while any number sample."""

    @property
    def device(self) -> torch.device:
        """Where queries and answers are."""
        ...

    @property
    def gpu(self) -> Device | None:
        """The GPU that holds the neighborhoods; None: they are in host memory."""
        ...

    @property
    def log(self) -> Log:
        """The events' columns, in host memory."""
        ...

    @property
    def position(self) -> int:
        """Events that samplers see."""
        ...

    def check(self, events: EventBatch, allow_late: bool) -> None:
        """Raise ValueError if `append` would."""
        ...

    def append(self, events: EventBatch, allow_late: bool) -> int:
        """Add events, all or none, and return the first one's position."""
        ...

    def sample(self, sampler: Sampler, queries: Queries, out: Neighbors) -> None:
        """Write the neighbors of `queries` to `out`, whose shape says how many each."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """Enclose what reads the neighborhoods on the current stream unseen: replays."""
        ...

    def remove(self, eid: Tensor) -> int:
        """Remove events, int64 `[N]` on the CPU; return how many neighbors are gone."""
        ...

    def remove_pair(self, src: int, dst: int) -> int:
        """Remove every event from `src` to `dst`, and back unless directed."""
        ...

    def remove_node(self, node: int) -> int:
        """Remove every event of `node`."""
        ...

    def retain(self, min_t: int, max_count: int) -> int:
        """Forget neighbors before `min_t`, and each node's oldest beyond `max_count`."""
        ...

    def compact(self) -> None:
        """Drop what only cut-offs before the latest changes see, and give memory back."""
        ...

    def move_down(self, num_bytes: int) -> None:
        """Move the oldest blocks to the host until the device has at most `num_bytes` of blocks."""
        ...

    def stats(self) -> StoreCounts:
        """Count what the store holds. Waits for a write in progress."""
        ...
