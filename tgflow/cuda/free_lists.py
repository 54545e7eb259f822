"""Memory that was given back, sorted by size, for kernels to take from."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow.cuda.chunks import CHUNK_BITS, PLACE_MASK, Chunks
from tgflow.cuda.device import Device, StreamEvent
from tgflow.cuda.structs import FreeItems
from tgflow.cuda.unread import GivenUp

NUM_CLASSES = 192
"""As `kClasses` of cuda/insertion.hpp: first of pieces of entries, from 160 on of directories."""
NO_CLASS = 255
_PIECES = 160
_MERGE_AT = 1024
_MOST_ROWS = 1 << 20


class FreeList:
    """Places and addresses by size class; a batch takes from each class's end.

    What is given back waits until it is worth sorting in, so that the cost of each item stays the
    same however many there are. Nothing here waits for the device: how many items there are the
    host knows at most, and it learns by each merge how many there were at the one before.
    """

    def __init__(self, gpu: Device, chunks: Chunks) -> None:
        self._gpu, self._chunks = gpu, chunks
        device = gpu.device
        self._items = torch.empty(0, dtype=torch.int64, device=device)
        self._classes = torch.empty(0, dtype=torch.uint8, device=device)
        self._bounds = torch.arange(NUM_CLASSES, dtype=torch.uint8, device=device)
        self._begin = torch.zeros(NUM_CLASSES, dtype=torch.int64, device=device)
        self.count = torch.zeros_like(self._begin)
        """Free items of each class, int64 `[192]`; kernels count off what they take."""
        self._total = gpu.allocate_host(8).view(torch.int64)
        self._counted: StreamEvent | None = None
        self._most = 0
        """Items after the last merge, at most."""
        self._waiting: list[GivenUp] = []
        self._num_waiting = self._num_rows = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the list itself."""
        return self._items.nbytes + self._classes.nbytes

    def view(self) -> FreeItems:
        """Return where kernels find the items; good until the next call that changes them."""
        return FreeItems(self._items.data_ptr(), self._begin.data_ptr(), self.count.data_ptr())

    def give(self, given: GivenUp) -> None:
        """Give back what nobody reads any more; its count is known."""
        if not given.count:
            return
        self._waiting.append(given)
        self._num_waiting += given.count
        self._num_rows += len(given.items)
        many = self._num_waiting >= max(_MERGE_AT, self._most // 4)
        if many or self._num_rows >= _MOST_ROWS:
            self.merge()

    def merge(self, *, drop_rooms: bool = False) -> None:
        """Sort in what waits, and forget the pieces of chunks that have left the device.

        With `drop_rooms` directories are forgotten too: their slabs are gone.
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
        self._counted = self._gpu.record_event(self._counted)
        self._waiting, self._num_waiting, self._num_rows = [], 0, 0

    def _still_free(self) -> Tensor:
        rank = torch.arange(len(self._items), device=self._items.device)
        size_class = self._classes.long().clamp(max=NUM_CLASSES - 1)
        taken = rank - self._begin[size_class] >= self.count[size_class]
        return torch.where(taken, NO_CLASS, self._classes)
