"""Keys of random draws, each determined by (seed, epoch, index, domain) alone."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from tgflow.base import _native


class KeyDomain(IntEnum):
    """Purpose of a key; draws of different domains are independent."""

    NEGATIVES = 1
    REPLAY = 2
    DROPOUT = 3
    SLICE = 4
    """Draws of a single slice of a batch."""
    REUSE = 5
    """Choice of rows that are recomputed although they could be reused."""
    LABELS = 6
    """Labels that are learned again."""
    HOP = 16
    """The first hop; hop `h` is `HOP + h`."""


derive_key: Callable[..., int] = _native.derive_key
"""Returns the 64-bit key of integers, as in `derive_key(seed, epoch, index, domain)`.

Order and number of words matter. Splitmix64 steps over the words, taken modulo 2^64.
"""


def as_int64(bits: int) -> int:
    """Return the signed number with the same 64 bits."""
    return bits - (1 << 64) if bits >> 63 else bits
