"""A cache in host memory: index, order and copying are the core's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tgflow import _core
from tgflow.cache.counters import CacheCounters
from tgflow.cache.engine import CachedSource, CacheSnapshot
from tgflow.cache.policy import Policy
from tgflow.cache.schedule import Schedule
from tgflow.tables.pending_gather import PendingGather


class HostCache:
    """`capacity` rows of `table` in host memory."""

    def __init__(self, table: CachedSource, capacity: int, policy: Policy) -> None:
        self._table = table
        self.capacity = capacity
        self._row_bytes = table.dim * table.dtype.itemsize
        self._native = _core.RowCache(getattr(_core.CachePolicy, policy), capacity, self._row_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes held: rows, index and order."""
        return self._native.bytes()

    def gather(self, ids: Tensor, out: Tensor) -> None:
        """Fill `out`; one pass where the table is in host memory, else misses in one batch."""
        if not ids.is_cpu:
            pinned = torch.empty(out.shape, dtype=out.dtype, pin_memory=out.is_cuda)
            self.gather(ids.cpu(), pinned)
            out.copy_(pinned, non_blocking=True)
            return
        size = len(self._table)
        where = (ids.data_ptr(), ids.numel())
        if self._table.placement == "host":
            rows = self._table.read(0, size)
            self._native.gather(rows.data_ptr(), size, *where, out.data_ptr())
            return
        lookup = _core.CacheLookup()
        self._native.look_up(*where, size, lookup)
        self._bring(lookup, out)

    def start(self, schedule: Schedule) -> PendingGather | None:
        """Begin to read from a disk: rows in memory are there at once, and may still change."""
        if self._table.placement != "disk":
            return None
        return self._table.start_gather(schedule.ids[schedule.hit < 0])

    def apply(
        self, schedule: Schedule, ids: Tensor, out: Tensor, missed: PendingGather | None = None
    ) -> None:
        """Fill `out` and make the schedule's moves."""
        if not ids.is_cpu:
            there = torch.empty(out.shape, dtype=out.dtype)
            self.apply(schedule, ids.cpu(), there, missed)
            out.copy_(there)
            return
        hit, admit = (part.to(torch.int32).contiguous() for part in (schedule.hit, schedule.admit))
        wanted, lookup = schedule.ids.contiguous(), _core.CacheLookup()
        moves = _core.CacheSchedule(
            wanted.data_ptr(), hit.data_ptr(), admit.data_ptr(), len(wanted)
        )
        where = (ids.data_ptr(), ids.numel())
        self._native.apply(moves, *where, len(self._table), lookup)
        self._bring(lookup, out, missed)

    def preload(self, ids: Tensor) -> None:
        """Read what is not there and fits."""
        ids, lookup = ids.cpu(), _core.CacheLookup()
        self._native.preload(ids.data_ptr(), ids.numel(), len(self._table), lookup)
        self._bring(lookup)

    def append(self, first: int, rows: Tensor) -> None:
        """Admit the last of the rows that the table has just been given, id `first` and on."""
        rows = rows.detach().cpu().contiguous()
        self._native.append(first, len(rows), rows.data_ptr())

    def _bring(
        self,
        lookup: _core.CacheLookup,
        out: Tensor | None = None,
        missed: PendingGather | None = None,
    ) -> None:
        """Read the rows that are missing and end what has begun; without them, undo it."""
        done = False
        try:
            rows = self._missing(lookup) if missed is None else missed.wait()
            to = 0 if out is None else out.data_ptr()
            self._native.copy(lookup, rows.data_ptr(), False, to)
            done = True
        finally:
            self._native.finish(lookup, done)

    def _missing(self, lookup: _core.CacheLookup) -> Tensor:
        misses = torch.empty(lookup.num_misses, dtype=torch.int64)
        lookup.copy_misses(misses.data_ptr())
        return self._table.gather(misses)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Keep gathers out."""
        self._native.begin_change()
        try:
            yield
        finally:
            self._native.end_change()

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite those of the rows that are held."""
        ids, rows = ids.cpu().contiguous(), rows.detach().cpu().contiguous()
        self._native.write(ids.data_ptr(), len(ids), rows.data_ptr())

    def truncate(self, size: int) -> None:
        """Forget the ids from `size` on."""
        self._native.truncate(size)

    def snapshot(self) -> CacheSnapshot:
        """Return what is held."""
        ids = torch.empty(self.capacity, dtype=torch.int64)
        keys = torch.empty_like(ids)
        self._native.snapshot(ids.data_ptr(), keys.data_ptr())
        return CacheSnapshot(ids, keys)

    def restore(self, snapshot: CacheSnapshot) -> None:
        """Hold that again; reads from the table what is no longer where it was."""
        ids, keys, lookup = snapshot.ids, snapshot.keys, _core.CacheLookup()
        self._native.restore(ids.data_ptr(), keys.data_ptr(), len(self._table), lookup)
        self._bring(lookup)

    def counters(self) -> CacheCounters:
        """Return what was counted since the last reset."""
        counts = self._native.counts()
        return CacheCounters(
            hits=counts.hits,
            misses=counts.misses,
            admitted=counts.admitted,
            evicted=counts.evicted,
            bypassed=counts.bypassed,
            preloaded=counts.preloaded,
            written=counts.written,
            row_bytes=self._row_bytes,
        )

    def reset_counters(self) -> None:
        """Count from 0."""
        self._native.reset_counts()
