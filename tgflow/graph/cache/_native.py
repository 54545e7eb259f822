"""Bindings of the core that host-memory caches use."""

from tgflow._core import CacheLookup as CacheLookup
from tgflow._core import CachePolicy as CachePolicy
from tgflow._core import RowCache as RowCache
from tgflow._core import ScheduleMismatch as ScheduleMismatch
