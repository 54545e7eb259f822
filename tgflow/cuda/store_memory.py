"""Memory of a device store: chunks of entries, slabs of directories, and free lists."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.cuda.device import Device, StreamEvent
from tgflow.cuda.readers import Readers
from tgflow.cuda.structs import FreeItems, Totals

CHUNK_BITS = 21
PLACE_MASK = (1 << 48) - 1
ENTRY_BYTES = 16
_IN_BUDGET = 16
_LEAST_ENTRIES = 256
_MOST_CAPACITY = 16384
_BLOCKS_IN_CHUNK = 4
_MOST_CHUNKS = 1 << 16


class Chunks:
    """A virtual line of entries cut into chunks, and the address of each chunk.

    Fresh pieces are cut off the line's end. A piece that begins in a chunk's last `max_capacity`
    entries would straddle two: chunks are spaced (`stride`) so that these belong to the next.
    The tables have room for more chunks than most stores ever have: a reader continues with the
    tables that it found, while a write already publishes blocks of later chunks.
    """

    def __init__(self, gpu: Device, readers: Readers, budget: int | None) -> None:
        self._gpu, self._readers, self.budget = gpu, readers, budget
        most = 1 << CHUNK_BITS
        wanted = most if budget is None else budget // ENTRY_BYTES // _IN_BUDGET
        size = 1 << max(wanted, 1).bit_length() - 1
        self.size = min(max(size, _LEAST_ENTRIES), most)
        """Entries per chunk."""
        self.max_capacity = min(_MOST_CAPACITY, self.size // _BLOCKS_IN_CHUNK)
        """Most entries of a block."""
        self.stride = self.size - self.max_capacity
        self.cursor = 0
        """Upper bound on the entries cut off so far."""
        self.moved = False
        """Whether chunks have moved to the host; reset by callers."""
        self._data: list[Tensor | None] = []
        self._on_device: deque[int] = deque()
        self.addresses = torch.zeros(_MOST_CHUNKS, dtype=torch.int64, device=gpu.device)
        """Address of each chunk, read by kernels."""
        self.tiers = torch.zeros(_MOST_CHUNKS, dtype=torch.uint8, device=gpu.device)
        """Per chunk: 0 on the device, 1 on the host, 2 freed."""
        self.outgrown = False
        """Whether the tables have moved, which running readers do not see. Reset by callers."""

    @property
    def count(self) -> int:
        """Number of chunks so far, including freed ones."""
        return len(self._data)

    @property
    def chunk_bytes(self) -> int:
        """Bytes per chunk."""
        return self.size * ENTRY_BYTES

    @property
    def ahead(self) -> int:
        """Entries that a write may reserve before its need is known.

        One chunk, or without a budget a quarter of all.
        """
        return self.stride if self.budget is not None else max(1, self.count // 4) * self.stride

    @property
    def room(self) -> int:
        """Lower bound on the entries left in the existing chunks."""
        return self.count * self.stride - self.cursor

    def tier_bytes(self, tier: int) -> int:
        """Return the bytes held by tier 0, the device, or tier 1, the host."""
        on_device = len(self._on_device)
        return (on_device if tier == 0 else len(self.held()) - on_device) * self.chunk_bytes

    def held(self) -> list[int]:
        """Return the chunks that are not freed."""
        return [chunk for chunk, data in enumerate(self._data) if data is not None]

    def ensure(self, num_entries: int) -> None:
        """Reserve chunks for `num_entries` more entries; moves older ones to the host if needed.

        Chunks that alone exceed the budget are allocated on the host, where kernels write in place.
        """
        wanted = -(-(self.cursor + num_entries) // self.stride) - len(self._data)
        if wanted <= 0:
            return
        room = len(self._on_device) + wanted
        if self.budget is not None:
            room = self.budget // self.chunk_bytes
        num_moved = min(len(self._on_device), max(0, len(self._on_device) + wanted - room))
        self._move_down(num_moved)
        on_device = min(wanted, room - len(self._on_device))
        on_host = [self._gpu.allocate_host(self.chunk_bytes) for _ in range(wanted - on_device)]
        self._add(on_host, [self._gpu.allocate(self.chunk_bytes) for _ in range(on_device)])

    def close(self) -> None:
        """Continue the line in a new chunk."""
        self.cursor = len(self._data) * self.stride

    def release(self, chunks: list[int]) -> None:
        """Free chunks that have no blocks left."""
        for chunk in chunks:
            data, self._data[chunk] = self._data[chunk], None
            assert data is not None
            self.tiers[chunk].fill_(2)
            self._readers.retire(data, in_host=chunk not in self._on_device)
        self._on_device = deque(chunk for chunk in self._on_device if self._data[chunk] is not None)

    def _move_down(self, num_chunks: int) -> None:
        """Copy the oldest chunks on the device to host memory; publish each by one store."""
        for _ in range(num_chunks):
            chunk = self._on_device[0]
            old, data = self._data[chunk], self._gpu.allocate_host(self.chunk_bytes)
            assert old is not None
            data.copy_(old, non_blocking=True)
            self.tiers[chunk].fill_(1)
            self.addresses[chunk].fill_(data.data_ptr())
            self._data[chunk] = data
            self._on_device.popleft()
            self.moved = True
            self._readers.retire(old)

    def _add(self, on_host: list[Tensor], on_device: list[Tensor]) -> None:
        first = len(self._data)
        self._data += [*on_host, *on_device]
        self._on_device.extend(range(first + len(on_host), len(self._data)))
        if len(self._data) > len(self.tiers):
            self.addresses = self._grown(self.addresses)
            self.tiers = self._grown(self.tiers)
            self.outgrown = True
        for chunk, data in enumerate([*on_host, *on_device], start=first):
            self.tiers[chunk].fill_(chunk < first + len(on_host))
            self.addresses[chunk].fill_(data.data_ptr())

    def _grown(self, table: Tensor) -> Tensor:
        grown = table.new_zeros(max(2 * len(table), len(self._data)))
        grown[: len(table)] = table
        self._readers.retire(table)
        return grown


UNIT = 32
"""Bytes of a directory's header, and of each block entry in it."""
_FIRST_SLAB = 1 << 11
_AHEAD = 1 << 16


class DirectorySlabs:
    """Slabs of units. A batch uses one slab: the rest of a full one stays unused."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._slabs: list[Tensor] = []
        self._size = self._num_old = 0
        self.used = 0
        """Upper bound on the used units of the last slab."""
        self.number = 0
        """Number of the last slab, counted from 1; 0 before."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all slabs."""
        return sum(map(len, self._slabs))

    @property
    def ahead(self) -> int:
        """Units that a write may reserve before its need is known."""
        return max(_AHEAD, self.num_bytes // UNIT // 2)

    @property
    def room(self) -> int:
        """Lower bound on the units left in the last slab."""
        return self._size - self.used

    @property
    def address(self) -> int:
        """Address of the next batch's directories, if `used` is exact."""
        return self._slabs[-1].data_ptr() + self.used * UNIT if self._slabs else 0

    def ensure(self, num_units: int) -> None:
        """Reserve `num_units` contiguous units."""
        if num_units > self.room:
            self._open(num_units)

    def renew(self, num_units: int) -> None:
        """Reserve `num_units` in a new slab, to which all used units move."""
        self._open(num_units)
        self._num_old = len(self._slabs) - 1

    def drop_old(self) -> list[Tensor]:
        """Drop and return the slabs before the renewed one."""
        old, self._slabs = self._slabs[: self._num_old], self._slabs[self._num_old :]
        self._num_old = 0
        return old

    def _open(self, num_units: int) -> None:
        size = max(num_units, _FIRST_SLAB, self.num_bytes // UNIT // 4)
        self._slabs.append(self._gpu.allocate(size * UNIT))
        self._size, self.used = size, 0
        self.number += 1


_SLOTS = 64
_TOTALS_BYTES = ctypes.sizeof(Totals)


@dataclass(frozen=True, slots=True)
class Need:
    """Fresh memory of a batch, exact or an upper bound."""

    entries: int
    rooms: int
    """Units of directories."""
    blocks: int


@dataclass(slots=True, eq=False)
class GivenUp:
    """Items that a batch has replaced, int64 `[N]`, and their size classes, uint8 `[N]`."""

    items: Tensor
    classes: Tensor
    count: int | None = None
    """Number of items that have a class; None: not read yet."""


@dataclass(slots=True, eq=False)
class Unread:
    """A committed batch whose totals are not read by the host yet."""

    done: StreamEvent
    totals: Totals
    most: Need
    given_up: GivenUp
    slab: int
    """Number of the slab with its directories."""
    growth: int
    """Most blocks that one node has gained."""


def most_of(num_pairs: int, num_entries: int, num_blocks: int, max_blocks: int, most: int) -> Need:
    """Return an upper bound on the memory of a batch.

    A run of `s` new entries takes full blocks and one partial block: a small one has room for at
    most 38 entries, one that grows by copying as well, another for 9/8 of the larger of its
    size and an eighth of the node's entries. A directory at most doubles.
    """
    full = num_pairs // most + 1
    tails = min(num_pairs * most, (num_entries + num_pairs) * 9 // 64 + num_pairs)
    linked = min(num_pairs * max_blocks, num_blocks)
    return Need(41 * num_pairs + tails, 2 * (num_pairs + full + linked), num_pairs + full)


class UnreadTotals:
    """Totals that kernels write to pinned memory, in the order of the batches."""

    def __init__(self, gpu: Device) -> None:
        self._memory = gpu.allocate_host(_SLOTS * _TOTALS_BYTES)
        self._slots = (Totals * _SLOTS).from_address(self._memory.data_ptr())
        self._batches: deque[Unread] = deque()
        self._next = 0
        self.num_entries = self.num_blocks = self.max_blocks = 0

    def most(self, num_pairs: int, max_capacity: int) -> Need:
        """Return an upper bound on the next batch's memory, by `most_of`."""
        max_blocks = self.max_blocks + sum(batch.growth for batch in self._batches)
        return most_of(num_pairs, self.num_entries, self.num_blocks, max_blocks, max_capacity)

    def slot(self) -> Totals:
        """Return the slot of the next batch's totals; if none is free, wait for the oldest."""
        if len(self._batches) >= _SLOTS - 1:
            self._batches[0].done.synchronize()
        return self._slots[self._next]

    def add(self, batch: Unread, num_pairs: int) -> None:
        """Add a batch, whose totals go to `slot()`."""
        self._batches.append(batch)
        self._next = (self._next + 1) % _SLOTS
        self.num_entries += num_pairs
        self.num_blocks += batch.most.blocks

    def add_change(self, gained: int, num_blocks: int) -> None:
        """Add a change of the past, with `gained` entries and `num_blocks` new blocks."""
        self.num_entries += max(gained, 0)
        self.num_blocks += num_blocks
        self.max_blocks += num_blocks

    def read(self) -> list[Unread]:
        """Return the batches finished since the last call; never waits."""
        done: list[Unread] = []
        while self._batches and self._batches[0].done.query():
            done.append(self._batches.popleft())
            totals = done[-1].totals
            self.num_blocks -= done[-1].most.blocks - totals.blocks
            self.max_blocks = max(self.max_blocks, totals.max_blocks)
            done[-1].given_up.count = totals.given_up
        return done

    def wait(self) -> None:
        """Wait for all batches."""
        if self._batches:
            self._batches[-1].done.synchronize()


NUM_CLASSES = 192
"""`kClasses` of cuda/insertion.hpp: first for pieces of entries, from 160 on for directories."""
NO_CLASS = 255
_PIECES = 160
_MERGE_AT = 1024
_MOST_ROWS = 1 << 20


class FreeList:
    """Free places and addresses by size class; a batch takes from each class's end.

    Freed items are batched before they are sorted in, so that the cost per item stays
    constant. Never waits for the device: the host has an upper bound on the number of items, and
    each merge reads the exact number at the previous one.
    """

    def __init__(self, gpu: Device, chunks: Chunks) -> None:
        self._gpu, self._chunks = gpu, chunks
        device = gpu.device
        self._items = torch.empty(0, dtype=torch.int64, device=device)
        self._classes = torch.empty(0, dtype=torch.uint8, device=device)
        self._bounds = torch.arange(NUM_CLASSES, dtype=torch.uint8, device=device)
        self._begin = torch.zeros(NUM_CLASSES, dtype=torch.int64, device=device)
        self.count = torch.zeros_like(self._begin)
        """Free items of each class, int64 `[192]`; kernels decrement it."""
        self._total = gpu.allocate_host(8).view(torch.int64)
        self._counted: StreamEvent | None = None
        self._most = 0
        """Upper bound on the items after the last merge."""
        self._waiting: list[GivenUp] = []
        self._num_waiting = self._num_rows = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the list."""
        return self._items.nbytes + self._classes.nbytes

    def view(self) -> FreeItems:
        """Return the items for kernels; valid until the next call that changes them."""
        return FreeItems(self._items.data_ptr(), self._begin.data_ptr(), self.count.data_ptr())

    def give(self, given: GivenUp) -> None:
        """Free items without readers; their count must be known."""
        if not given.count:
            return
        self._waiting.append(given)
        self._num_waiting += given.count
        self._num_rows += len(given.items)
        many = self._num_waiting >= max(_MERGE_AT, self._most // 4)
        if many or self._num_rows >= _MOST_ROWS:
            self.merge()

    def merge(self, *, drop_rooms: bool = False) -> None:
        """Sort in the pending items, and drop the pieces of chunks that have left the device.

        With `drop_rooms`, drop directories too: their slabs are freed.
        """
        if self._counted is not None and self._counted.query():
            self._most = int(self._total)
        self._most += self._num_waiting
        items = torch.cat([self._items, *(given.items for given in self._waiting)])
        classes = torch.cat([self._still_free(), *(given.classes for given in self._waiting)])
        piece = classes < _PIECES
        chunk = torch.where(piece, (items & PLACE_MASK) >> CHUNK_BITS, 0)
        classes = torch.where(piece & (self._chunks.tiers[chunk] != 0), NO_CLASS, classes)
        if drop_rooms:
            classes = torch.where(piece, classes, NO_CLASS)
        classes, order = classes.sort(stable=True)
        self._begin = torch.searchsorted(classes, self._bounds)
        self.count = torch.searchsorted(classes, self._bounds, right=True) - self._begin
        self._items, self._classes = items[order[: self._most]], classes[: self._most].clone()
        self._total.copy_(self.count.sum(0, keepdim=True), non_blocking=True)
        self._counted = self._gpu.record_event()
        self._waiting, self._num_waiting, self._num_rows = [], 0, 0

    def _still_free(self) -> Tensor:
        rank = torch.arange(len(self._items), device=self._items.device)
        size_class = self._classes.long().clamp(max=NUM_CLASSES - 1)
        taken = rank - self._begin[size_class] >= self.count[size_class]
        return torch.where(taken, NO_CLASS, self._classes)
