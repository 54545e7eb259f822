"""Bindings of the core that host-memory caches use."""

from tgflow._core import CacheLookup, CachePolicy, RowCache, ScheduleMismatch

__all__ = ["CacheLookup", "CachePolicy", "RowCache", "ScheduleMismatch"]
