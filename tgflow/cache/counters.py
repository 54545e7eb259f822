"""What a cache has done."""

from __future__ import annotations

from dataclasses import dataclass


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
