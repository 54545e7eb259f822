"""A cache in host memory; index, replacement order and copies are in the core."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from tgflow.graph.cache import _native
from tgflow.graph.cache.contents import CacheCounters, CacheSchedule, CacheSnapshot, Policy
from tgflow.graph.tables.feature_table import FeatureTable
from tgflow.graph.tables.table import PendingGather, host_rows_like


class HostCache:
    """`capacity` rows of `table` in host memory."""

    gpu = None

    def __init__(self, table: FeatureTable, capacity: int, policy: Policy) -> None:
        self._table = table
        self.capacity = capacity
        self._row_bytes = table.dim * table.dtype.itemsize
        kind = getattr(_native.CachePolicy, policy)
        self._rows = _native.RowCache(kind, capacity, self._row_bytes)
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """Bytes held: rows, index and order."""
        return self._rows.bytes()

    def gather(self, ids: Tensor, out: Tensor) -> None:
        """Fill `out`; all misses are read from the table in one batch."""
        if not ids.is_cpu:
            pinned = host_rows_like(out)
            self.gather(ids.cpu(), pinned)
            out.copy_(pinned, non_blocking=True)
            return
        with self._lock:
            self._finish(self._rows.look_up(ids, len(self._table)), out)

    def start(self, schedule: CacheSchedule) -> PendingGather | None:
        """Start reads from a disk; None for a table in memory, whose rows may still change."""
        if self._table.placement != "disk":
            return None
        return self._table.start_gather(schedule.ids[schedule.hit < 0])

    def apply(
        self, schedule: CacheSchedule, ids: Tensor, out: Tensor, missed: PendingGather | None = None
    ) -> None:
        """Fill `out` and apply the schedule's moves."""
        if not ids.is_cpu:
            there = torch.empty(out.shape, dtype=out.dtype)
            self.apply(schedule, ids.cpu(), there, missed)
            out.copy_(there)
            return
        hit, admit = (part.to(torch.int32).contiguous() for part in (schedule.hit, schedule.admit))
        planned = schedule.ids.contiguous()
        with self._lock:
            lookup = self._rows.apply(planned, hit, admit, ids, len(self._table))
            self._finish(lookup, out, missed)

    def preload(self, ids: Tensor) -> None:
        """Read and admit the rows that are missing and fit."""
        with self._lock:
            self._finish(self._rows.preload(ids.cpu(), len(self._table)))

    def append(self, first: int, rows: Tensor) -> None:
        """Admit the latest rows of an append to the table; `first` is the first one's id."""
        with self._lock:
            self._rows.append(first, rows.detach().cpu().contiguous())

    def _finish(
        self,
        lookup: _native.CacheLookup,
        out: Tensor | None = None,
        missed: PendingGather | None = None,
    ) -> None:
        """Read the missing rows, fill `out` and admit."""
        if missed is None:
            rows = self._table.gather(torch.from_numpy(lookup.misses))
        else:
            rows = missed.wait()
        self._rows.finish(lookup, rows, out)

    def changing(self) -> AbstractContextManager[object]:
        """Block gathers of other threads."""
        return self._lock

    def truncate(self, size: int) -> None:
        """Evict the ids from `size` on."""
        self._rows.truncate(size)

    def snapshot(self) -> CacheSnapshot:
        """Return the contents and ranking."""
        ids = torch.empty(self.capacity, dtype=torch.int64)
        keys = torch.empty_like(ids)
        self._rows.snapshot(ids, keys)
        return CacheSnapshot(ids, keys)

    def restore(self, snapshot: CacheSnapshot) -> None:
        """Restore a snapshot's contents; rows no longer in their slot are read from the table."""
        with self._lock:
            self._finish(self._rows.restore(snapshot.ids, snapshot.keys, len(self._table)))

    def counters(self) -> CacheCounters:
        """Return the counters since the last reset."""
        return CacheCounters(*[*self._rows.counts(), self._row_bytes])

    def reset_counters(self) -> None:
        """Reset the counters."""
        self._rows.reset_counts()
