"""What caches in host memory use of the core."""

from tgflow._core import (
    CacheLookup,
    CachePolicy,
    RowCache,
    ScheduleMismatch,
)

__all__ = [
    "CacheLookup",
    "CachePolicy",
    "RowCache",
    "ScheduleMismatch",
]
