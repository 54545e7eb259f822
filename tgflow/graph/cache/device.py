"""A set-associative cache in a GPU's memory with CLOCK replacement (csrc/cuda/cache.cu)."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.cuda.device import Device
from tgflow.cuda.launch import Argument
from tgflow.cuda.readers import Readers
from tgflow.cuda.rows import write_width
from tgflow.cuda.structs import words
from tgflow.graph.cache.contents import CacheCounters, CacheSnapshot
from tgflow.graph.tables.feature_table import FeatureTable

WAYS = 8
"""Slots of a set: `kWays` of csrc/cuda/cache.cu."""
_IN_REACH = ("device", "uva")
"""Placements whose rows kernels can read."""
_THREADS = 256
_PIECE = 16
_BLOCKS = 8
_MOST = 2**31 - 1
"""Most slots, and ids per gather: kernels number them in 32 bits."""


class CachePurpose(IntEnum):
    """Reason for a lookup; `CachePurpose` in csrc/cuda/cache.cu."""

    GATHER = 0
    PRELOAD = 5
    APPEND = 6


class _Cache(ctypes.Structure):
    """`ClockCache` of csrc/cuda/cache.cu."""

    _fields_ = words("id used hand claim clock counts rows capacity row_bytes stride")


class _Batch(ctypes.Structure):
    """`CacheBatch` of csrc/cuda/cache.cu."""

    _fields_ = words("id size table_size table source admit miss purpose")


class _Copy(ctypes.Structure):
    """`CacheCopy` of csrc/cuda/cache.cu."""

    _fields_ = words("source admit size out lanes")


class Lookup(NamedTuple):
    """The ids of one gather, with the source and destination slot of each row."""

    ids: Tensor
    source: Tensor
    """Slot that holds each row, int32; -1: none."""
    admit: Tensor
    """Slot that each row is admitted to, int32; -1: none."""
    miss: Tensor
    """Ids to read from the table, -1 elsewhere."""


class DeviceCache:
    """`capacity` rows of `table` in a GPU's memory, in sets of 8 slots with CLOCK replacement."""

    def __init__(self, table: FeatureTable, capacity: int, gpu: Device) -> None:
        if capacity > _MOST:
            raise ValueError(f"a cache on a GPU has at most {_MOST} rows, got {capacity}")
        self._table, self.gpu = table, gpu
        self.capacity = capacity
        self._row_bytes = table.dim * table.dtype.itemsize
        self._stride = -(-self._row_bytes // _PIECE) * _PIECE
        self._rows = gpu.allocate(capacity * self._stride)
        self._id = torch.full((capacity,), -1, dtype=torch.int64, device=gpu.device)
        """Per slot; -1: free."""
        self._used = torch.zeros_like(self._id)
        """Per slot: last gather that used it; 0: unused since the hand passed."""
        self._claim = self._id.new_zeros(-(-capacity // WAYS))
        self._hand = torch.zeros_like(self._claim, dtype=torch.uint8)
        self._clock = self._id.new_ones(1)
        """Number of the gather; on the device, so that replayed gathers are counted."""
        self._counts = self._id.new_zeros(7)
        self._lock = threading.RLock()
        self._turns = Readers(gpu)
        self._turns.wait_when_dropped(self, in_host=True)

    @property
    def nbytes(self) -> int:
        parts = (self._rows, self._id, self._used, self._claim, self._hand)
        return sum(part.nbytes for part in parts)

    def gather(self, ids: Tensor, out: Tensor) -> None:
        if ids.device != self.gpu.device:
            there = self._empty(ids)
            self.gather(ids.to(there.device), there)
            out.copy_(there)
            return
        with self.changing():
            found = self._look_up(ids, CachePurpose.GATHER)
            self._read_misses(found, out)
            self._copy(found.source, found.admit, out)

    def preload(self, ids: Tensor) -> None:
        ids = ids.to(self.gpu.device)
        out = self._empty(ids)
        with self.changing():
            for _ in range(WAYS):  # a set admits one row in each pass
                found = self._look_up(ids, CachePurpose.PRELOAD)
                stays_out = (found.admit < 0) & (found.miss < len(self._table))
                found.miss.masked_fill_(stays_out, -1)
                self._read_misses(found, out)
                self._copy(None, found.admit, out)

    def append(self, first: int, rows: Tensor) -> None:
        num = min(len(rows), self.capacity)
        if num == 0:
            return
        device, end = self.gpu.device, first + len(rows)
        with self.changing():
            ids = torch.arange(end - num, end, device=device)
            there = rows[len(rows) - num :].detach().to(device).contiguous()
            for _ in range(min(-(-num // len(self._claim)), WAYS)):
                found = self._look_up(ids, CachePurpose.APPEND)
                self._copy(None, found.admit, there)

    def _look_up(self, ids: Tensor, purpose: CachePurpose) -> Lookup:
        """Look up the rows, and choose which misses to admit."""
        size, view = ids.numel(), self._table.view
        if size > _MOST:
            raise ValueError(f"a gather has at most {_MOST} ids, got {size}")
        source, admit = ids.new_empty(2, size, dtype=torch.int32).unbind(0)
        found = Lookup(ids, source, admit, ids.new_empty(size))
        places = (x.data_ptr() for x in (source, admit, found.miss))
        table = len(self._table), 0 if view is None else view.address
        batch = _Batch(ids.data_ptr(), size, *table, *places, purpose)
        self._clock += 1
        self._launch("cache_look_up", size, batch)
        self._launch("cache_admit", size, batch)
        return found

    def _read_misses(self, found: Lookup, out: Tensor) -> None:
        """Let the table write the missing rows to `out`, and zeros elsewhere."""
        try:
            if self._table.placement in _IN_REACH:
                self._table.gather(found.miss.view(found.ids.shape), out)
                return
            asked = found.miss.cpu()
            where = asked.ge(0).nonzero().view(-1)
            distinct, row = asked[where].unique(return_inverse=True)  # type: ignore[no-untyped-call]
            rows = self._table.gather(distinct)[row]
        except BaseException:
            self._id[found.admit[found.admit >= 0].long()] = -1
            raise
        out.zero_()
        out.view(-1, self._table.dim).index_copy_(0, where.to(out.device), rows.to(out.device))

    def _copy(self, source: Tensor | None, admit: Tensor | None, out: Tensor) -> None:
        """Copy hits to `out`, and admitted rows from `out` into their slots."""
        size = out.numel() // max(self._table.dim, 1)
        if size == 0:
            return
        width = write_width(self._row_bytes | out.data_ptr())
        lanes = min(1 << (self._row_bytes // width - 1).bit_length(), 32)
        slots = (0 if x is None else x.data_ptr() for x in (source, admit))
        args = _Copy(*slots, size, out.data_ptr(), lanes)
        blocks = min(-(-size * lanes // _THREADS), self.gpu.multiprocessors * _BLOCKS)
        self.gpu.kernels.launch(f"cache_copy_by_{width}", blocks, _THREADS, self._args(), args)

    def _args(self) -> _Cache:
        parts = (self._id, self._used, self._hand, self._claim, self._clock, self._counts)
        addresses = (part.data_ptr() for part in (*parts, self._rows))
        return _Cache(*addresses, self.capacity, self._row_bytes, self._stride)

    def _launch(self, kernel: str, size: int, *args: Argument) -> None:
        if size > 0:
            blocks = -(-size // _THREADS)
            self.gpu.kernels.launch(kernel, blocks, _THREADS, self._args(), *args)

    def _empty(self, ids: Tensor) -> Tensor:
        shape, device = (*ids.shape, self._table.dim), self.gpu.device
        return torch.empty(shape, dtype=self._table.dtype, device=device)

    @contextmanager
    def changing(self) -> Iterator[None]:
        with self._lock:
            if self.gpu.is_capturing():
                yield
                return
            self._turns.writing()
            try:
                yield
            finally:
                self._turns.published()

    def truncate(self, size: int) -> None:
        self._id.masked_fill_(self._id >= size, -1)

    def snapshot(self) -> CacheSnapshot:
        with self.changing():
            keys = (self._used > 0) & (self._id >= 0)
            return CacheSnapshot(self._id.to("cpu", copy=True), keys.long().cpu())

    def restore(self, snapshot: CacheSnapshot) -> None:
        with self.changing():
            device = self.gpu.device
            ids = snapshot.ids.where(snapshot.ids < len(self._table), -1)
            slots = ((ids >= 0) & (ids != self._id.cpu())).nonzero().view(-1)
            rows = self._table.gather(ids[slots]).to(device).contiguous()
            self._id.copy_(ids)
            self._used.copy_(snapshot.keys.clamp(0, 1))
            self._copy(None, slots.to(device, torch.int32), rows)
            self._counts[5] += len(slots)

    def counters(self) -> CacheCounters:
        with self.changing():
            return CacheCounters(*[*self._counts.tolist(), self._row_bytes])

    def reset_counters(self) -> None:
        with self.changing():
            self._counts.zero_()
