"""What a table can do, and what the placements of its rows can."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from tgflow.tables.pending_gather import RowRequest

if TYPE_CHECKING:
    from tgflow.tables.gpu_rows import GpuView


class Table(Protocol):
    """Rows of one width and dtype by id: THE contract of whatever a graph reads features from.

    Where the rows are never changes an answer: every implementation gives the same bytes for the
    same ids, raises the same errors, and leaves a table as it was if it raises. Ids count from 0 in
    the order of `append`; -1 is nobody's and reads as zeros. One thread appends, truncates or
    closes, and any number gather meanwhile; what a gather was asked for was there before it began.
    """

    @property
    def dim(self) -> int:
        """Width of a row."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""

    @property
    def placement(self) -> str:
        """Where the rows are now, for people and for choices that change no answer."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""

    @property
    def base(self) -> Table:
        """The table that has the rows: itself, or the one behind caches and views."""

    @property
    def file(self) -> Path | None:
        """The file in which exactly these rows outlive the process; None without."""

    def __len__(self) -> int: ...

    def check(self, rows: Tensor) -> None:
        """Raise ValueError unless `rows`, `[N, dim]`, could be appended."""

    def append(self, rows: Tensor) -> int:
        """Add rows, all or none, and return the first one's id."""

    def truncate(self, size: int) -> None:
        """Rewind to the first `size` rows: what came after a checkpoint is gone."""

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows of int64 ids `[...]` as `[..., dim]` on their device; -1 gives zeros.

        Raises:
            IndexError: If an id is not below `len(self)`; at once, or, where ids are on a GPU, at a
                later call.
            ValueError: If `ids` or `out` has another dtype, shape or device.
        """

    def read(self, start: int, stop: int) -> Tensor:
        """Return the rows `[start, stop)` on the CPU."""

    def describe(self) -> dict[str, Any]:
        """Return what there is to say of the table, as JSON has it: sizes in bytes."""

    def close(self) -> None:
        """Give back what is held, once what still reads is done."""


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

    @property
    def view(self) -> GpuView | None:
        """What a GPU's kernels read; None where they cannot."""

    def append(self, rows: Tensor, size: int) -> None:
        """Put `rows`, contiguous uint8 `[N, row_bytes]` on any device, behind the first `size`."""

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite the rows of `ids`, int64 `[N]`, all there and each once.

        On a GPU that is the caller's word: an id that is not there is found later, as a gather's.
        """

    @property
    def num_rows(self) -> int:
        """Rows that were there when it was opened or are since: a file's; 0 of memory."""

    def start(self, ids: Tensor, out: Tensor, size: int) -> RowRequest | None:
        """Begin a gather on the CPU; None if it is done, as where rows are in memory.

        `ids` and `out` must stay as they are until it is.
        """

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
