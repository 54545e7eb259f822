"""Policies of caches, and what a cache holds, has counted and is told to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

HostPolicy = Literal["lru", "lfu", "fifo", "static", "belady"]
Policy = HostPolicy | Literal["clock"]
"""Of a cache in host memory, or "clock", of one on a GPU."""

POLICIES: tuple[HostPolicy, ...] = get_args(HostPolicy)

LFU_MOST = 255
"""Where counts of use stop."""


def lfu_period(capacity: int) -> int:
    """Return after how many admissions all counts of use are halved."""
    return max(4 * capacity, 1)


@dataclass(slots=True)
class CacheCounters:
    """Counts of rows; a row asked for several times in one gather counts once."""

    hits: int = 0
    """Rows asked for and read from the cache."""
    misses: int = 0
    """Rows asked for and read from the table."""
    admitted: int = 0
    """Rows put into the cache by gathers, preload and append."""
    evicted: int = 0
    """Rows that had to make room."""
    bypassed: int = 0
    """Misses that were not kept."""
    preloaded: int = 0
    """Rows read from the table that no gather asked for: by preload and by restore."""
    written: int = 0
    """Rows put into the cache as they were appended: nobody had to read them."""
    row_bytes: int = 0
    """Bytes of a row."""

    @property
    def hit_rate(self) -> float:
        """Share of the rows asked for that were in the cache; 0 before the first."""
        return self.hits / max(self.hits + self.misses, 1)

    @property
    def bytes_from_table(self) -> int:
        """Bytes read from the table, for gathers, preload and restore."""
        return (self.misses + self.preloaded) * self.row_bytes


@dataclass(frozen=True, slots=True, eq=False)
class CacheSnapshot:
    """Which rows a cache held, and how they were ranked: not the rows, which their table has.

    Args:
        ids: The id in each slot, -1 for none, int64 `[capacity]`, on the CPU.
        keys: What slots are ranked by, int64 `[capacity]`, on the CPU.
    """

    ids: Tensor
    keys: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class CacheSchedule:
    """One batch's moves, to be applied in the order in which they were planned.

    Args:
        ids: The distinct ids that the batch gathers, without -1, in order of first appearance,
            int64 `[D]`, on the CPU.
        hit: The slot in which each is found, int32 `[D]`; -1: not cached, read from the table.
        admit: The slot into which each that was read is put afterwards, int32 `[D]`; -1: none. It
            may hold another row, even one that this batch found there: hits are read first.
    """

    ids: Tensor
    hit: Tensor
    admit: Tensor

    def __len__(self) -> int:
        return len(self.ids)
