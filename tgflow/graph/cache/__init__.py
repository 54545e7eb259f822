"""Caches in front of tables: they hold the rows read most often or next, close to the reader."""

from tgflow.graph.cache._native import ScheduleMismatch as ScheduleMismatch
from tgflow.graph.cache.contents import CacheCounters as CacheCounters
from tgflow.graph.cache.contents import CacheSchedule as CacheSchedule
from tgflow.graph.cache.contents import CacheSnapshot as CacheSnapshot
from tgflow.graph.cache.table import CachedTable as CachedTable
from tgflow.graph.cache.table import cache_of as cache_of
from tgflow.graph.cache.table import cached as cached
