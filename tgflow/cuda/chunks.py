"""The memory of a store's entries: chunks on the device, the oldest of them in host memory."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from tgflow.cuda.machine import Machine
from tgflow.cuda.readers import Readers

CHUNK_BITS = 21
PLACE_MASK = (1 << 48) - 1
ENTRY_BYTES = 16
_IN_BUDGET = 16
_LEAST_ENTRIES = 256
_MOST_CAPACITY = 16384
_BLOCKS_IN_CHUNK = 4


class Chunks:
    """A line of entries cut into chunks, and where each chunk is now.

    Fresh pieces are cut off the line's end. A piece that begins in a chunk's last `max_capacity`
    entries would straddle two: chunks lie so far apart (`stride`) that these belong to the next.
    """

    def __init__(self, machine: Machine, readers: Readers, budget: int | None) -> None:
        self._machine, self._readers, self.budget = machine, readers, budget
        most = 1 << CHUNK_BITS
        wanted = most if budget is None else budget // ENTRY_BYTES // _IN_BUDGET
        size = 1 << max(wanted, 1).bit_length() - 1
        self.size = min(max(size, _LEAST_ENTRIES), most)
        """Entries of a chunk."""
        self.max_capacity = min(_MOST_CAPACITY, self.size // _BLOCKS_IN_CHUNK)
        """Entries of a block at most."""
        self.stride = self.size - self.max_capacity
        self.line = 0
        """Entries cut off so far."""
        self.moved = False
        """Whether chunks have moved down; for others to notice and to reset."""
        self._data: list[Tensor | None] = []
        self._upper: deque[int] = deque()
        self.addresses = torch.zeros(64, dtype=torch.int64, device=machine.device)
        """Where each chunk is, as kernels read it."""
        self.tiers = torch.zeros(64, dtype=torch.uint8, device=machine.device)
        """Per chunk: 0 on the device, 1 on the host, 2 given back."""

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk."""
        return self.size * ENTRY_BYTES

    def tier_bytes(self, tier: int) -> int:
        """Return the bytes that tier 0, the device, or tier 1, the host, holds."""
        upper = len(self._upper)
        return (upper if tier == 0 else len(self.held()) - upper) * self.chunk_bytes

    def held(self) -> list[int]:
        """Return the chunks that were not given back."""
        return [chunk for chunk, data in enumerate(self._data) if data is not None]

    def ensure(self, num_entries: int) -> None:
        """Have chunks for so many more entries; older ones move down where that needs it.

        What exceeds the budget by itself goes to the host at once, where kernels write it in place.

        Raises:
            MemoryError: If a tier has no room; nothing but where chunks are has changed then.
        """
        wanted = -(-(self.line + num_entries) // self.stride) - len(self._data)
        if wanted <= 0:
            return
        room = len(self._upper) + wanted
        if self.budget is not None:
            room = self.budget // self.chunk_bytes
        num_moved = min(len(self._upper), max(0, len(self._upper) + wanted - room))
        self._move_down(num_moved)
        upper = min(wanted, room - len(self._upper))
        lower = [self._machine.allocate_host(self.chunk_bytes) for _ in range(wanted - upper)]
        self._add(lower, [self._machine.allocate(self.chunk_bytes) for _ in range(upper)])

    def shrink(self, num_bytes: int) -> None:
        """Move the oldest chunks down until the upper tier holds at most `num_bytes`.

        Raises:
            MemoryError: If the host has no room; what has moved stays moved.
        """
        self._move_down(max(0, len(self._upper) - num_bytes // self.chunk_bytes))

    def close(self) -> None:
        """Let the line go on in a new chunk."""
        self.line = len(self._data) * self.stride

    def release(self, chunks: list[int]) -> None:
        """Give back chunks in which no blocks are left."""
        for chunk in chunks:
            data, self._data[chunk] = self._data[chunk], None
            assert data is not None
            self.tiers[chunk] = 2
            self._readers.give_up((data, None))
        self._upper = deque(chunk for chunk in self._upper if self._data[chunk] is not None)

    def _move_down(self, num_chunks: int) -> None:
        """Copy the oldest upper chunks to host memory, each published by one store."""
        for _ in range(num_chunks):
            chunk = self._upper[0]
            old, data = self._data[chunk], self._machine.allocate_host(self.chunk_bytes)
            assert old is not None
            data.copy_(old, non_blocking=True)
            self.tiers[chunk] = 1
            self.addresses[chunk] = data.data_ptr()
            self._data[chunk] = data
            self._upper.popleft()
            self.moved = True
            self._readers.give_up((old, None))

    def _add(self, lower: list[Tensor], upper: list[Tensor]) -> None:
        first = len(self._data)
        self._data += [*lower, *upper]
        self._upper.extend(range(first + len(lower), len(self._data)))
        if len(self._data) > len(self.tiers):
            self.addresses = self._grown(self.addresses)
            self.tiers = self._grown(self.tiers)
        for chunk, data in enumerate([*lower, *upper], start=first):
            self.tiers[chunk] = int(chunk < first + len(lower))
            self.addresses[chunk] = data.data_ptr()

    def _grown(self, table: Tensor) -> Tensor:
        grown = table.new_zeros(max(2 * len(table), len(self._data)))
        grown[: len(table)] = table
        self._readers.give_up((table, None))
        return grown
