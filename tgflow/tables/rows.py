"""What a place of rows can do: the one interface between tables and where their bytes are."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Rows(Protocol):
    """Rows of `row_bytes` bytes each, by number.

    One thread changes them at a time, and any number may gather rows that were there before.
    """

    place: str
    row_bytes: int

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

    def close(self) -> None:
        """Give all back; waits for what still reads."""
