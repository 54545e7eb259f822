"""Tables of rows by id: their interface, the base of their placements, and checks of arguments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from tgflow.tables import _native

if TYPE_CHECKING:
    from tgflow.cuda.rows import TableView


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


class PendingGather:
    """A gather that continues while its caller does something else."""

    def __init__(self, out: Tensor, ids: Tensor, request: _native.RowRequest | None) -> None:
        self._request = request  # goes first: it waits for the rows that are still written
        self._ids, self._out = ids, out

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._request is None or self._request.is_done

    def wait(self) -> Tensor:
        """Return the rows once they are there.

        Raises:
            OSError: If they cannot be read. `tgflow.tables.DamagedFile` is one, for rows that are
                not what was written.
        """
        if self._request is not None:
            self._request.wait()
        return self._out

    def __del__(self) -> None:
        self._request = None


class RowStorage:
    """Base class of placements: rows of `row_bytes` bytes each, by number.

    One thread changes them at a time, and any number may gather rows that were there before.
    """

    placement: str
    row_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        raise NotImplementedError

    @property
    def view(self) -> TableView | None:
        """What a GPU's kernels read; None where they cannot."""
        return None

    @property
    def num_rows(self) -> int:
        """Rows of a file; 0 of memory."""
        return 0

    def append(self, rows: Tensor, size: int) -> None:
        """Put `rows`, contiguous uint8 `[N, row_bytes]` on any device, behind the first `size`."""
        raise NotImplementedError

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite the rows of `ids`, int64 `[N]`, each once."""
        raise NotImplementedError

    def start(self, ids: Tensor, out: Tensor, size: int) -> _native.RowRequest | None:
        """Begin a gather on the CPU; None if it is done, as where rows are in memory."""
        self.gather(ids, out, size)
        return None

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Copy the rows of `ids`, contiguous int64, to `out`, contiguous beside them.

        A negative id gives zeros. Raises IndexError if one is not below `size`.
        """
        raise NotImplementedError

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows that are there, uint8 `[stop - start, row_bytes]` on the CPU."""
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        """Forget the rows from `size` on."""

    def sync(self) -> None:
        """Make what was appended as safe as the placement can."""

    def close(self) -> None:
        """Give all back; waits for what still reads."""
        raise NotImplementedError


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name without "torch."."""
    return str(dtype).removeprefix("torch.")


def check_ids(ids: Tensor) -> None:
    """Raise unless `ids` is a tensor of int64."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids must be a tensor, got {type(ids).__name__}; use torch.as_tensor(ids)")
    if ids.dtype != torch.int64:
        raise ValueError(f"ids must be int64, got {name_of(ids.dtype)}")


def out_for(ids: Tensor, out: Tensor | None, dim: int, dtype: torch.dtype) -> Tensor:
    """Return where the rows of `ids` go: `out` if it is fit for them, else a new tensor.

    Raises:
        ValueError: If `out` has another dtype, shape or device, or shares the memory of the ids,
            which rows would overwrite while they are read.
    """
    shape = (*ids.shape, dim)
    if out is None:
        return torch.empty(shape, dtype=dtype, device=ids.device)
    if out.shape != shape or out.dtype != dtype or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous {name_of(dtype)} {list(shape)}, "
            f"got {name_of(out.dtype)} {list(out.shape)}"
        )
    if out.device != ids.device:
        raise ValueError(f"out must be beside the ids on {ids.device}, it is on {out.device}")
    if _share_memory(ids, out):
        raise ValueError("out must not share memory with ids: rows would overwrite them")
    return out


def _share_memory(ids: Tensor, out: Tensor) -> bool:
    if ids.untyped_storage().data_ptr() != out.untyped_storage().data_ptr():
        return False
    begin, end = out.data_ptr(), out.data_ptr() + out.nbytes
    reach = sum((n - 1) * step for n, step in zip(ids.shape, ids.stride(), strict=True))
    return ids.numel() > 0 and ids.data_ptr() < end and begin <= ids.data_ptr() + 8 * reach
