"""Cache policies, snapshots, counters and schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

HostPolicy = Literal["lru", "lfu", "fifo", "static", "belady"]
Policy = HostPolicy | Literal["clock"]
"""Policy of a cache: one for host memory, or "clock" on a GPU."""

POLICIES: tuple[HostPolicy, ...] = get_args(HostPolicy)


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
    """Rows replaced by others."""
    bypassed: int = 0
    """Misses that were not admitted."""
    preloaded: int = 0
    """Rows read from the table that no gather asked for: by preload and by restore."""
    written: int = 0
    """Rows written through to the cache by `append`, without a read."""
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
    """Ids and ranking of the rows a cache held; the rows themselves are in the table.

    Args:
        ids: The id in each slot, -1 for none, int64 `[capacity]`, on the CPU.
        keys: Ranking key of each slot, int64 `[capacity]`, on the CPU.
    """

    ids: Tensor
    keys: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class CacheSchedule:
    """Hits and admissions of one batch; apply schedules in the order they were planned.

    Args:
        ids: The distinct ids that the batch gathers, without -1, in order of first appearance,
            int64 `[D]`, on the CPU.
        hit: Slot in which each id is found, int32 `[D]`; -1: not cached, read from the table.
        admit: Slot into which each row that was read is put afterwards, int32 `[D]`; -1: none. The
            slot may hold another row, even one that this batch found there: hits are read first.
    """

    ids: Tensor
    hit: Tensor
    admit: Tensor

    def __len__(self) -> int:
        return len(self.ids)
