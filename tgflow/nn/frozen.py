"""Copies of rows made by another thread, as of an earlier time, while they are overwritten."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Columns = Callable[[slice | Tensor], Sequence[Tensor]]
"""Returns the current rows at a slice or at ids, as views or copies, of each of some columns."""


class FrozenRows:
    """Rows of some columns as they are when it is made.

    Rows that are overwritten before `copy_to` has passed them are copied by `keep`, and all others
    page by page. One thread writes and one copies; neither waits for the other: a row that changes
    while its page is copied has been kept before, and replaces what the page has. Rows may move
    while they grow, and must stay otherwise.
    """

    def __init__(self, size: int, columns: Columns) -> None:
        self.size, self._columns, self._next = size, columns, 0
        self._is_kept = torch.zeros(size, dtype=torch.bool)
        self._kept: list[tuple[Tensor, Sequence[Tensor]]] = []

    def keep(self, ids: Tensor) -> None:
        """Copy the rows of distinct ids that are not copied yet; call it before they change."""
        if (first := self._next) >= self.size:
            return
        ids = ids[(ids >= first) & (ids < self.size)]
        ids = ids[~self._is_kept.index_select(0, ids)]
        if len(ids):
            self._is_kept.index_fill_(0, ids, True)
            self._kept.append((ids, self._columns(ids)))

    def copy_to(self, out: Sequence[Tensor], pages: Iterator[slice]) -> None:
        """Write the rows to tensors, once; `pages` are ascending slices of those needed."""
        for page in pages:
            for to, x in zip(out, self._columns(page), strict=True):
                if x.is_cpu and to.is_cpu:  # on this thread alone, beside the training's
                    to[page].numpy()[...] = x.numpy()
                else:
                    to[page].copy_(x)
            self._next = page.stop
        self._next = self.size
        for ids, rows in tuple(self._kept):
            for to, x in zip(out, rows, strict=True):
                to.index_copy_(0, ids, x)
        self._kept.clear()


class Freezer(weakref.WeakSet[FrozenRows]):
    """The frozen rows of a table that are still needed."""

    def freeze(self, size: int, columns: Columns) -> FrozenRows:
        self.add(made := FrozenRows(size, columns))
        return made

    def keep(self, ids: Tensor | None = None) -> None:
        """Call it before the rows of distinct ids change; None: of all."""
        for each in tuple(self):
            each.keep(torch.arange(each.size) if ids is None else ids)

    def __reduce__(self) -> tuple[type[Freezer], tuple[()]]:
        return Freezer, ()  # a copy of the table has other rows
