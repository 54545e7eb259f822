"""Which row makes room for another."""

from __future__ import annotations

from typing import Literal, get_args

HostPolicy = Literal["lru", "lfu", "fifo", "static", "belady"]
Policy = HostPolicy | Literal["clock"]
"""Of a cache in host memory, or "clock", of one on a GPU."""

POLICIES: tuple[HostPolicy, ...] = get_args(HostPolicy)

LFU_MOST = 255
"""Where counts of use stop."""


def lfu_period(capacity: int) -> int:
    """Return after how many admissions all counts of use are halved."""
    return max(4 * capacity, 1)
