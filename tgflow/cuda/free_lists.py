"""Memory that was given back, sorted by size, for kernels to take from."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow.cuda.chunks import CHUNK_BITS, PLACE_MASK, Chunks
from tgflow.cuda.structs import FreeItems

NUM_CLASSES = 192
"""As `kClasses` of cuda/size_class.hpp: first of pieces of entries, from 160 on of directories."""
NO_CLASS = 255
_PIECES = 160
_MERGE_AT = 1024


class FreeList:
    """Places and addresses by size class; a batch takes from each class's end.

    What is given back waits until it is worth sorting in, so that the cost of each item stays the
    same however many there are.
    """

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        device = chunks.tiers.device
        self._items = torch.empty(0, dtype=torch.int64, device=device)
        self._classes = torch.empty(0, dtype=torch.uint8, device=device)
        self._bounds = torch.arange(NUM_CLASSES, dtype=torch.uint8, device=device)
        self._begin = torch.zeros(NUM_CLASSES, dtype=torch.int64, device=device)
        self.count = torch.zeros_like(self._begin)
        """Free items of each class, int64 `[192]`."""
        self._reserved = torch.zeros_like(self._begin)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._num_waiting = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the list itself."""
        return self._items.nbytes + self._classes.nbytes

    def view(self) -> FreeItems:
        """Return where kernels find the items; good until the next call that changes them."""
        return FreeItems(self._items.data_ptr(), self._begin.data_ptr(), self.count.data_ptr())

    def reserve(self, needed: Tensor) -> None:
        """Note how many of each class a batch needs, int `[192]`, and takes what there is."""
        self._reserved = torch.minimum(self.count, needed)

    def take(self) -> None:
        """Count off what was reserved. Allocates nothing."""
        self.count -= self._reserved

    def give(self, items: Tensor, classes: Tensor) -> None:
        """Give back `items`, int64 `[N]`, of `classes`, uint8 `[N]`, where `NO_CLASS` is none."""
        self._waiting.append((items, classes))
        self._num_waiting += len(items)
        if self._num_waiting >= max(_MERGE_AT, len(self._items) // 4):
            self.merge()

    def merge(self, *, drop_rooms: bool = False) -> None:
        """Sort in what waits, and forget the pieces of chunks that have left the device.

        With `drop_rooms` directories are forgotten too: their slabs are gone.

        Synchronizes: how many items there are then is read back.
        """
        items = torch.cat([self._items, *(items for items, _ in self._waiting)])
        classes = torch.cat([self._still_free(), *(classes for _, classes in self._waiting)])
        piece = classes < _PIECES
        chunk = torch.where(piece, (items & PLACE_MASK) >> CHUNK_BITS, 0)
        classes = torch.where(piece & (self._chunks.tiers[chunk] != 0), NO_CLASS, classes)
        if drop_rooms:
            classes = torch.where(piece, classes, NO_CLASS)
        classes, order = classes.sort(stable=True)
        self._begin = torch.searchsorted(classes, self._bounds)
        self.count = torch.searchsorted(classes, self._bounds, right=True) - self._begin
        size = int(self.count.sum())
        self._items, self._classes = items[order][:size], classes[:size].clone()
        self._waiting, self._num_waiting = [], 0

    def _still_free(self) -> Tensor:
        rank = torch.arange(len(self._items), device=self._items.device)
        rank -= self._begin[self._classes.long()]
        taken = rank >= self.count[self._classes.long()]
        return torch.where(taken, NO_CLASS, self._classes)
