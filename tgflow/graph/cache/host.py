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
        return self._rows.bytes()

    def gather(self, ids: Tensor, out: Tensor) -> None:
        if not ids.is_cpu:
            pinned = host_rows_like(out)
            self.gather(ids.cpu(), pinned)
            out.copy_(pinned, non_blocking=True)
            return
        with self._lock:
            self._finish(self._rows.look_up(ids, len(self._table)), out)

    def start(self, schedule: CacheSchedule) -> PendingGather | None:
        if self._table.placement != "disk":
            return None
        return self._table.start_gather(schedule.ids[schedule.hit < 0])

    def apply(
        self, schedule: CacheSchedule, ids: Tensor, out: Tensor, missed: PendingGather | None = None
    ) -> None:
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
        with self._lock:
            self._finish(self._rows.preload(ids.cpu(), len(self._table)))

    def append(self, first: int, rows: Tensor) -> None:
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
        return self._lock

    def truncate(self, size: int) -> None:
        self._rows.truncate(size)

    def snapshot(self) -> CacheSnapshot:
        ids = torch.empty(self.capacity, dtype=torch.int64)
        keys = torch.empty_like(ids)
        self._rows.snapshot(ids, keys)
        return CacheSnapshot(ids, keys)

    def restore(self, snapshot: CacheSnapshot) -> None:
        with self._lock:
            self._finish(self._rows.restore(snapshot.ids, snapshot.keys, len(self._table)))

    def counters(self) -> CacheCounters:
        return CacheCounters(*[*self._rows.counts(), self._row_bytes])

    def reset_counters(self) -> None:
        self._rows.reset_counts()
