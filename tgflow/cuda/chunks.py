"""The memory of a store's entries: chunks on the device, the oldest of them in host memory."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from tgflow.cuda.device import Device
from tgflow.cuda.pinned import SparePinned
from tgflow.cuda.readers import Readers

CHUNK_BITS = 21
PLACE_MASK = (1 << 48) - 1
ENTRY_BYTES = 16
_IN_BUDGET = 16
_LEAST_ENTRIES = 256
_MOST_CAPACITY = 16384
_BLOCKS_IN_CHUNK = 4
_MOST_CHUNKS = 1 << 16


class Chunks:
    """A line of entries cut into chunks, and where each chunk is now.

    Fresh pieces are cut off the line's end. A piece that begins in a chunk's last `max_capacity`
    entries would straddle two: chunks lie so far apart (`stride`) that these belong to the next.
    Their tables have room for more chunks than most stores ever have: a reader goes on with the
    tables that it found, while a write already shows it blocks of later chunks.
    """

    def __init__(self, gpu: Device, readers: Readers, budget: int | None) -> None:
        self._gpu, self._readers, self.budget = gpu, readers, budget
        most = 1 << CHUNK_BITS
        wanted = most if budget is None else budget // ENTRY_BYTES // _IN_BUDGET
        size = 1 << max(wanted, 1).bit_length() - 1
        self.size = min(max(size, _LEAST_ENTRIES), most)
        """Entries of a chunk."""
        self.max_capacity = min(_MOST_CAPACITY, self.size // _BLOCKS_IN_CHUNK)
        """Entries of a block at most."""
        self.stride = self.size - self.max_capacity
        self.cursor = 0
        """Entries cut off so far, at most."""
        self.moved = False
        """Whether chunks have moved down; for others to notice and to reset."""
        self._spare = SparePinned(gpu, self.chunk_bytes)
        self._data: list[Tensor | None] = []
        self._on_device: deque[int] = deque()
        self.addresses = torch.zeros(_MOST_CHUNKS, dtype=torch.int64, device=gpu.device)
        """Where each chunk is, as kernels read it."""
        self.tiers = torch.zeros(_MOST_CHUNKS, dtype=torch.uint8, device=gpu.device)
        """Per chunk: 0 on the device, 1 on the host, 2 given back."""
        self.outgrown = False
        """Whether the tables have moved: readers know only the old ones. For others to reset."""

    @property
    def count(self) -> int:
        """Chunks so far, those given back included."""
        return len(self._data)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk."""
        return self.size * ENTRY_BYTES

    @property
    def ahead(self) -> int:
        """Entries that a write may reserve without being sure that it needs them.

        A chunk, or where there is no budget a quarter of all.
        """
        return self.stride if self.budget is not None else max(1, self.count // 4) * self.stride

    @property
    def room(self) -> int:
        """Entries that are left in the chunks that there are, at least."""
        return self.count * self.stride - self.cursor

    def tier_bytes(self, tier: int) -> int:
        """Return the bytes that tier 0, the device, or tier 1, the host, holds."""
        on_device = len(self._on_device)
        return (on_device if tier == 0 else len(self.held()) - on_device) * self.chunk_bytes

    def held(self) -> list[int]:
        """Return the chunks that were not given back."""
        return [chunk for chunk, data in enumerate(self._data) if data is not None]

    def ensure(self, num_entries: int) -> None:
        """Reserve chunks for `num_entries` more entries; older ones move down where that needs it.

        What exceeds the budget by itself goes to the host at once, where kernels write it in place.

        Raises:
            MemoryError: If a tier has no room; nothing but where chunks are has changed then.
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
        on_host = [self._spare.take() for _ in range(wanted - on_device)]
        self._add(on_host, [self._gpu.allocate(self.chunk_bytes) for _ in range(on_device)])

    def shrink(self, num_bytes: int) -> None:
        """Move the oldest chunks down until the device holds at most `num_bytes`.

        Raises:
            MemoryError: If the host has no room; what has moved stays moved.
        """
        self._move_down(max(0, len(self._on_device) - num_bytes // self.chunk_bytes))

    def close(self) -> None:
        """Let the line go on in a new chunk."""
        self.cursor = len(self._data) * self.stride

    def release(self, chunks: list[int]) -> None:
        """Give back chunks in which no blocks are left."""
        for chunk in chunks:
            data, self._data[chunk] = self._data[chunk], None
            assert data is not None
            self.tiers[chunk] = 2
            self._readers.retire(data, in_host=chunk not in self._on_device)
        self._on_device = deque(chunk for chunk in self._on_device if self._data[chunk] is not None)

    def _move_down(self, num_chunks: int) -> None:
        """Copy the oldest chunks on the device to host memory, each published by one store."""
        for _ in range(num_chunks):
            chunk = self._on_device[0]
            old, data = self._data[chunk], self._spare.take()
            assert old is not None
            data.copy_(old, non_blocking=True)
            self.tiers[chunk] = 1
            self.addresses[chunk] = data.data_ptr()
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
            self.tiers[chunk] = int(chunk < first + len(on_host))
            self.addresses[chunk] = data.data_ptr()

    def _grown(self, table: Tensor) -> Tensor:
        grown = table.new_zeros(max(2 * len(table), len(self._data)))
        grown[: len(table)] = table
        self._readers.retire(table)
        return grown
