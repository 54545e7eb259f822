"""Tables: rows of features by id, that grow with the stream."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow import _core


class FeatureTable:
    """Float32 rows in host memory; row `i` belongs to id `i`.

    One thread appends at a time, and any number may gather meanwhile.
    """

    def __init__(self, dim: int) -> None:
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self._rows = torch.empty(0, dim)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def dim(self) -> int:
        """Width of a row."""
        return self._rows.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes held, room for growth included."""
        return self._rows.numel() * self._rows.element_size()

    def append(self, rows: Tensor) -> int:
        """Add `rows`, float32 `[N, dim]`, and return the first one's id. Amortised O(N)."""
        self.check(rows)
        first = self._size
        if first + len(rows) > len(self._rows):
            grown = torch.empty(max(first + len(rows), first + first // 2, 1024), self.dim)
            grown[:first] = self._rows[:first]
            self._rows = grown
        self._rows[first : first + len(rows)] = rows
        self._size = first + len(rows)
        return first

    def read(self, start: int, stop: int) -> Tensor:
        """Return the rows `[start, stop)` as a view, which later appends leave as it is."""
        if not 0 <= start <= stop <= self._size:
            raise IndexError(f"the table holds rows [0, {self._size}), asked for [{start}, {stop})")
        return self._rows[start:stop]

    def truncate(self, size: int) -> None:
        """Take back the rows from id `size` on, which nobody has been told of."""
        self._size = min(self._size, size)

    def check(self, rows: Tensor) -> None:
        """Raise ValueError unless `rows` could be appended."""
        if rows.dtype != torch.float32 or rows.dim() != 2 or rows.shape[1] != self.dim:
            raise ValueError(
                f"rows must be float32 [N, {self.dim}], got {rows.dtype} {list(rows.shape)}"
            )

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows of `ids`, int64 of any shape `[...]`, as float32 `[..., dim]`.

        An id of -1 gives a row of zeros.

        Args:
            ids: Ids below `len(self)`, or -1.
            out: Contiguous float32 `[..., dim]` to fill and return instead of a new tensor.

        Raises:
            ValueError: If `ids` or `out` has another dtype or shape.
            IndexError: If an id is not below `len(self)`.
        """
        if ids.dtype != torch.int64:
            raise ValueError(f"ids must be int64, got {ids.dtype}")
        size, rows = self._size, self._rows  # in this order: an append may replace the rows
        ids = ids.contiguous()
        shape = (*ids.shape, self.dim)
        if out is None:
            out = torch.empty(shape)
        elif out.shape != shape or out.dtype != torch.float32 or not out.is_contiguous():
            raise ValueError(f"out must be contiguous float32 {list(shape)}, got {list(out.shape)}")
        _core.gather_rows(
            rows.data_ptr(), self.dim, size, ids.data_ptr(), ids.numel(), out.data_ptr()
        )
        return out
