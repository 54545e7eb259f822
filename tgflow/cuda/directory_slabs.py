"""The memory of a store's directories: slabs, from which each batch cuts what it needs."""

from __future__ import annotations

from torch import Tensor

from tgflow.cuda.device import Device

UNIT = 32
"""Bytes of a directory's header, and of each of its blocks."""
_FIRST_SLAB = 1 << 11
_AHEAD = 1 << 16


class DirectorySlabs:
    """Slabs of units. What a batch needs is in one slab: the rest of a full one stays unused."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._slabs: list[Tensor] = []
        self._size = self._num_old = 0
        self.used = 0
        """Units of the last slab in use, at most."""
        self.number = 0
        """Of the last slab, counted from 1; 0 before."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all slabs."""
        return sum(map(len, self._slabs))

    @property
    def ahead(self) -> int:
        """Units that a write may reserve without being sure that it needs them."""
        return max(_AHEAD, self.num_bytes // UNIT // 2)

    @property
    def room(self) -> int:
        """Units that are left in the last slab, at least."""
        return self._size - self.used

    @property
    def address(self) -> int:
        """Where the next batch's directories begin, if `used` is exact."""
        return self._slabs[-1].data_ptr() + self.used * UNIT if self._slabs else 0

    def ensure(self, num_units: int) -> None:
        """Reserve `num_units` contiguous units.

        Raises:
            MemoryError: If the device has no room; nothing has changed then.
        """
        if num_units > self.room:
            self._open(num_units)

    def renew(self, num_units: int) -> None:
        """Reserve `num_units` in a slab of their own, to which all that is in use moves.

        Raises:
            MemoryError: As `ensure`.
        """
        self._open(num_units)
        self._num_old = len(self._slabs) - 1

    def drop_old(self) -> list[Tensor]:
        """Let go of the slabs before the renewed one, and return them."""
        old, self._slabs = self._slabs[: self._num_old], self._slabs[self._num_old :]
        self._num_old = 0
        return old

    def _open(self, num_units: int) -> None:
        size = max(num_units, _FIRST_SLAB, self.num_bytes // UNIT // 4)
        self._slabs.append(self._gpu.allocate(size * UNIT))
        self._size, self.used = size, 0
        self.number += 1
