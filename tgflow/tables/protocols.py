"""What a table can do, and what the placements of its rows can."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Table(Protocol):
    """What reads and grows as a `FeatureTable` does, which see."""

    @property
    def dim(self) -> int:
        """Width of a row."""

    @property
    def dtype(self) -> torch.dtype:
        """What its elements are."""

    def __len__(self) -> int: ...

    def check(self, rows: Tensor) -> None:
        """Raise ValueError unless `rows` could be appended."""

    def append(self, rows: Tensor) -> int:
        """Add rows and return the first one's id."""

    def truncate(self, size: int) -> None:
        """Take back the rows from id `size` on."""

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return rows by id."""

    def read(self, start: int, stop: int) -> Tensor:
        """Return neighboring rows on the CPU."""


class RowStorage(Protocol):
    """Rows of `row_bytes` bytes each, by number.

    One thread changes them at a time, and any number may gather rows that were there before.
    """

    row_bytes: int

    @property
    def placement(self) -> str:
        """The name of the placement."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""

    def append(self, rows: Tensor, size: int) -> None:
        """Put `rows`, contiguous uint8 `[N, row_bytes]` on any device, behind the first `size`."""

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite the rows of `ids`, int64 `[N]`, all there and each once."""

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Copy the rows of `ids`, contiguous int64, to `out`, as many contiguous rows beside them.

        A negative id gives zeros. Raises IndexError if one is not below `size`.
        """

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows that are there, uint8 `[stop - start, row_bytes]` on the CPU."""

    def truncate(self, size: int) -> None:
        """Forget the rows from `size` on."""

    def sync(self) -> None:
        """Make what was appended as safe as the placement can."""

    def close(self) -> None:
        """Give all back; waits for what still reads."""
