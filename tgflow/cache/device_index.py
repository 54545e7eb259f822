"""Launches a cache's kernels (csrc/cuda/cache.cu)."""

from __future__ import annotations

import ctypes
from ctypes import c_int64 as _number
from ctypes import c_uint64 as _word
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.cuda.device import Device
from tgflow.cuda.launch import Argument

_THREADS = 256
_PIECE = 16
_BLOCKS = 8
_MOST_IDS = 2**30
"""Their hash table has twice as many entries, whose numbers are int32."""
_MOST_SLOTS = 2**31 - 1
_ENTRIES_A_SLOT = 4
_LEAST_ENTRIES = 64
_LRU, _LFU, _FIFO = 0, 1, 2
_QUEUE_THREADS = 512
_PERIOD_SLOTS = 4
"""As `lfu_period` of tgflow/cache/policy.py."""


class LookupPurpose(IntEnum):
    """Who wants the rows of a batch: `CachePurpose` (cuda/cache.hpp)."""

    GATHER = 0
    PRELOAD = 1
    APPEND = 2


class _Cache(ctypes.Structure):
    """The cache (cuda/cache.hpp)."""

    _fields_ = (
        ("entry", _word),
        ("mask", _number),
        ("id", _word),
        ("used", _word),
        ("came", _word),
        ("uses", _word),
        ("capacity", _number),
        ("policy", _number),
        ("rows", _word),
        ("row_bytes", _number),
        ("stride", _number),
        ("progress", _word),
        ("queue_slot", _word),
        ("queue_stamp", _word),
        ("queue_mask", _number),
    )


class _Batch(ctypes.Structure):
    """One gather (cuda/cache.hpp)."""

    _fields_ = (
        ("id", _word),
        ("size", _number),
        ("table_size", _number),
        ("table", _word),
        ("num_more", _number),
        ("claimed", _word),
        ("claim_mask", _number),
        ("place", _word),
        ("source", _word),
        ("miss", _word),
        ("found", _word),
        ("admit", _word),
        ("room", _word),
        ("admits", _number),
        ("purpose", _number),
        ("counts", _word),
    )


class _Copy(ctypes.Structure):
    """Rows to be copied (cuda/cache.hpp)."""

    _fields_ = (
        ("source", _word),
        ("admit", _word),
        ("size", _number),
        ("out", _word),
        ("lanes", _number),
    )


class TableSize(NamedTuple):
    """How many rows a table has, and the address at which kernels find that; 0 for none."""

    num_rows: int
    view: int


class CacheBatch:
    """A gather on its way through a cache; holds the tensors that its kernels work on."""

    def __init__(
        self, index: CacheIndex, ids: Tensor, table: TableSize, purpose: LookupPurpose
    ) -> None:
        num = ids.numel()
        if num > _MOST_IDS:
            raise ValueError(f"a gather has at most {_MOST_IDS} ids, got {num}")
        self._index, self.ids = index, ids
        entries = 1 << max(2 * num - 1, 1).bit_length()
        self._claimed = ids.new_full((entries,), -1, dtype=torch.int32)
        self._place, self.source, self.admit = ids.new_empty(3, num, dtype=torch.int32)
        self.found = ids.new_empty(2, num, dtype=torch.int32)
        """Whether each id is a hit, or a miss; then the sums along both rows as if one."""
        self.miss = ids.new_empty(num, dtype=torch.int64)
        """What the table is asked for, -1 for nothing."""
        self._room = ids.new_empty(0, dtype=torch.int64)
        self.args = _Batch(
            ids.data_ptr(),
            num,
            table.num_rows,
            table.view,
            min(num, index.capacity),
            self._claimed.data_ptr(),
            entries - 1,
            self._place.data_ptr(),
            self.source.data_ptr(),
            self.miss.data_ptr(),
            self.found.data_ptr(),
            self.admit.data_ptr(),
            purpose=purpose,
            counts=index.counts.data_ptr(),
        )

    def first(self) -> Tensor:
        """Return which ids are the first of equal ones, before `count`. Synchronizes."""
        return self.found.sum(0).nonzero().view(-1)

    def count(self) -> None:
        """Number the hits and the misses: in one row, which torch scans with the whole device."""
        flat = self.found.view(-1)
        torch.cumsum(flat, 0, dtype=torch.int32, out=flat)

    def choose_room(self) -> None:
        """Find the slots that make room for as many rows as may come; behind `count`."""
        self._room = self._index.room(self)
        self.args.room = self._room.data_ptr()

    def ask_for_admitted_only(self) -> None:
        """Forget the misses beyond what there is room for."""
        is_late = self.found[1] > self._index.capacity  # the sums of misses have all hits in them
        self.miss.masked_fill_(is_late & (self.miss < self.args.table_size), -1)


class CacheIndex:
    """Which rows are where, and the rows; on a GPU's current stream, without synchronizing.

    Args:
        capacity: Slots.
        row_bytes: Of a row.
        policy: A number of `CachePolicy` (detail/cache_policy.hpp).
        gpu: Whose memory and kernels.
    """

    def __init__(self, capacity: int, row_bytes: int, policy: int, gpu: Device) -> None:
        if capacity > _MOST_SLOTS:
            raise ValueError(f"a cache on a GPU has at most {_MOST_SLOTS} rows, got {capacity}")
        self.capacity, self.row_bytes = capacity, row_bytes
        self._policy, self._gpu = policy, gpu
        device = gpu.device
        self.stride = -(-row_bytes // _PIECE) * _PIECE
        self._rows = gpu.allocate(capacity * self.stride)
        self.id = torch.full((capacity,), -1, dtype=torch.int64, device=device)
        """Per slot, -1 for none."""
        self.used, self.came = torch.zeros(2, capacity, dtype=torch.int64, device=device)
        """When each slot was asked for last, and when its row came."""
        self.uses = torch.zeros(capacity, dtype=torch.uint8, device=device)
        """How often each was used, under lfu."""
        self.counts = torch.zeros(10, dtype=torch.int64, device=device)
        """Hits, misses, admitted, evicted, bypassed, preloaded, written; rows held; rows ever
        admitted before the last gather and after it."""
        self._progress = torch.tensor([1, 0, 0, 0, 0, 0], device=device)
        """As `CacheProgress` (cuda/cache.hpp)."""
        size = 1 << (max(_ENTRIES_A_SLOT * capacity, _LEAST_ENTRIES) - 1).bit_length()
        self._entry = torch.full((size,), -1, dtype=torch.int32, device=device)
        self._inserted = 0
        self._is_captured = False
        room = 1 << (2 * capacity - 1).bit_length() if self._has_queue and capacity else 0
        self._queue_slot = torch.empty(room, dtype=torch.int32, device=device)
        self._queue_stamp = torch.empty(room, dtype=torch.int64, device=device)
        self.put_in_order()

    @property
    def _has_queue(self) -> bool:
        return self._policy in (_LRU, _FIFO)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory held."""
        queue = (self._queue_slot, self._queue_stamp)
        parts = (self._rows, self.id, self.used, self.came, self.uses, self._entry, *queue)
        return sum(part.numel() * part.element_size() for part in parts)

    def look_up(
        self, ids: Tensor, table: TableSize, purpose: LookupPurpose = LookupPurpose.GATHER
    ) -> CacheBatch:
        """Find where the rows of `ids`, contiguous int64 and at least one, are."""
        self._make_room(min(ids.numel(), self.capacity))
        batch = CacheBatch(self, ids, table, purpose)
        self._launch("cache_claim", ids.numel(), self._args(), batch.args)
        self._launch("cache_look_up", ids.numel(), self._args(), batch.args)
        return batch

    def room(self, batch: CacheBatch) -> Tensor:
        """Return slots as they make room in a gather, the first ones first, int64; perhaps more."""
        most = min(batch.ids.numel(), self.capacity)
        if not self._has_queue:
            keys = torch.empty_like(self.id)
            address = ctypes.c_uint64(keys.data_ptr())
            self._launch("cache_keys", self.capacity, self._args(), batch.args, address)
            return keys.topk(most, largest=False, sorted=True).indices
        room = batch.ids.new_empty(most)
        batch.args.room = room.data_ptr()
        if most > 0:
            kernels = self._gpu.kernels
            kernels.launch("cache_choose", 1, _QUEUE_THREADS, self._args(), batch.args)
        return room

    def put_in_order(self) -> None:
        """Make the queue of what slots say of themselves: free ones first, the lowest first."""
        for stamps in (self.used, self.came):
            free = torch.arange(-self.capacity, 0, device=self.id.device)
            stamps.copy_(torch.where(self.id < 0, free, stamps))
        if not self._has_queue:
            return
        ordered = (self.came if self._policy == _FIFO else self.used).sort()
        self._queue_slot[: self.capacity] = ordered.indices.to(torch.int32)
        self._queue_stamp[: self.capacity] = ordered.values
        self._progress[3:].fill_(0)
        self._progress[4:].fill_(self.capacity)

    def admit(self, batch: CacheBatch, admits: bool) -> None:
        """Put the first misses into the slots that make room, as many as fit; count."""
        batch.args.admits = int(admits)
        self._launch("cache_admit", batch.ids.numel(), self._args(), batch.args)
        if self._policy == _LFU:
            counts = ctypes.c_uint64(self.counts.data_ptr())
            period = _number(max(_PERIOD_SLOTS * self.capacity, 1))
            self._launch("cache_age", self.capacity, self._args(), counts, period)

    def place(self, batch: CacheBatch) -> None:
        """Put misses where `batch.admit` says; count."""
        goes = batch.admit[batch.admit >= 0].long()
        hits, misses = batch.found.sum(1)
        admitted, evicted = len(goes), (self.id[goes] >= 0).sum()
        self.counts[:5] += torch.stack(
            (hits, misses, hits.new_tensor(admitted), evicted, misses - admitted)
        )
        self.counts[7] += admitted - evicted
        batch.args.admits = 2
        self._launch("cache_admit", batch.ids.numel(), self._args(), batch.args)

    def copy(
        self, batch: CacheBatch, out: Tensor, *, reads: bool = True, puts: bool = True
    ) -> None:
        """Read rows that were found to `out`, and put rows there that are admitted into slots."""
        source = batch.source if reads else None
        self._copy(source, batch.admit if puts else None, out, batch.ids.numel())

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite those of the rows that are held; int64 `[N]`, `[N, dim]`, N at least 1."""
        slots = ids.new_empty(len(ids), dtype=torch.int32)
        where = ctypes.c_uint64(ids.data_ptr()), _number(len(ids))
        address = ctypes.c_uint64(slots.data_ptr())
        self._launch("cache_find", len(ids), self._args(), *where, address)
        self._copy(None, slots, rows, len(ids))

    def put(self, slots: Tensor, rows: Tensor) -> None:
        """Put rows into slots, int64 `[N]`."""
        self._copy(None, slots.to(torch.int32), rows.contiguous(), len(slots))

    def set_contents(self, ids: Tensor) -> None:
        """Have these ids in the slots, int64 `[capacity]`."""
        self.id.copy_(ids)
        self.put_in_order()
        self.counts[7] = (ids >= 0).sum()
        self._rehash(len(self._entry))
        self._inserted = 0
        self._progress[1:3].fill_(0)

    def pass_positions(self, used: Tensor) -> None:
        """Let the clock go on behind these positions, int64 `[capacity]`, of another cache's."""
        self._progress[0] = torch.cat([self._progress[:1], used + 1]).max()

    def _make_room(self, num_more: int) -> None:
        """Clear entries that are gone before they are too many.

        The host has a bound, and spares the device the question. Once a gather is captured only the
        device knows: how often that one is replayed nobody tells the host.
        """
        self._is_captured |= self._gpu.is_capturing()
        if self._is_captured:
            self._rehash(num_more)
            return
        if self.capacity + self._inserted + num_more > 3 * len(self._entry) // 4:
            self._rehash(len(self._entry))
            self._inserted = 0
        self._inserted += num_more

    def _rehash(self, num_more: int) -> None:
        """Rehash if `num_more` entries do not fit; as many as it has entries force it."""
        blocks = min(-(-len(self._entry) // _THREADS), self._gpu.multiprocessors * _BLOCKS)
        args = self._args()
        self._gpu.kernels.launch("cache_clear", blocks, _THREADS, args, _number(num_more))
        self._gpu.kernels.launch("cache_index", blocks, _THREADS, args)

    def _copy(self, source: Tensor | None, admit: Tensor | None, out: Tensor, num: int) -> None:
        alignment = self.row_bytes | out.data_ptr()
        alignment = min(alignment & -alignment, _PIECE)
        lanes = min(1 << (self.row_bytes // alignment - 1).bit_length(), 32)
        args = _Copy(
            0 if source is None else source.data_ptr(),
            0 if admit is None else admit.data_ptr(),
            num,
            out.data_ptr(),
            lanes,
        )
        if num == 0:
            return
        blocks = min(-(-num * lanes // _THREADS), self._gpu.multiprocessors * _BLOCKS)
        name = f"cache_copy_by_{alignment}"
        self._gpu.kernels.launch(name, blocks, _THREADS, self._args(), args)

    def _args(self) -> _Cache:
        return _Cache(
            self._entry.data_ptr(),
            len(self._entry) - 1,
            self.id.data_ptr(),
            self.used.data_ptr(),
            self.came.data_ptr(),
            self.uses.data_ptr(),
            self.capacity,
            self._policy,
            self._rows.data_ptr(),
            self.row_bytes,
            self.stride,
            self._progress.data_ptr(),
            self._queue_slot.data_ptr(),
            self._queue_stamp.data_ptr(),
            len(self._queue_slot) - 1,
        )

    def _launch(self, kernel: str, size: int, *args: Argument) -> None:
        if size > 0:
            self._gpu.kernels.launch(kernel, -(-size // _THREADS), _THREADS, *args)
