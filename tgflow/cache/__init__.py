"""Caches in front of tables: they hold the rows read most often or next, close to the reader."""

from tgflow.cache._native import ScheduleMismatch as ScheduleMismatch
from tgflow.cache.contents import CacheCounters as CacheCounters
from tgflow.cache.contents import CacheSchedule as CacheSchedule
from tgflow.cache.contents import CacheSnapshot as CacheSnapshot
from tgflow.cache.table import CachedTable as CachedTable
from tgflow.cache.table import cache_of as cache_of
from tgflow.cache.table import cached as cached
