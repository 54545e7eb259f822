"""Tables of rows by id: interface, base class of placements, and argument checks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from tgflow.cuda.device import device_of, has_device
from tgflow.graph.tables import _native

if TYPE_CHECKING:
    from tgflow.cuda.device import Device
    from tgflow.cuda.rows import TableView


class Table(Protocol):
    """What a graph reads features from: a `FeatureTable`, which documents it, or one in front.

    The placement never changes a result: every implementation returns the same bytes for the
    same ids, raises the same errors, and is unchanged if it raises. Ids count from 0 in the
    order of `append`; -1 stands for no row and reads as zeros. One thread appends, truncates or
    closes while any number gather; the rows of a gather must exist before it starts.
    """

    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def placement(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def base(self) -> Table:
        """The table that stores the rows: itself, or the one behind caches and views."""

    @property
    def file(self) -> Path | None:
        """The file that holds exactly these rows and outlives the process; None without one."""

    def __len__(self) -> int: ...
    def check(self, rows: Tensor) -> None: ...
    def append(self, rows: Tensor) -> int: ...
    def truncate(self, size: int) -> None: ...
    def forget(self, first: int) -> None: ...
    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor: ...
    def read(self, start: int, stop: int) -> Tensor: ...
    def describe(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class TableInFront:
    """Takes width, dtype and placement from the table behind it."""

    table: Table

    @property
    def dim(self) -> int:
        return self.table.dim

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype

    @property
    def placement(self) -> str:
        return self.table.placement

    @property
    def base(self) -> Table:
        return self.table.base


class PendingGather:
    """A gather that runs asynchronously to its caller."""

    def __init__(self, out: Tensor, ids: Tensor, request: _native.RowRequest | None) -> None:
        self._request = request  # destroyed first: it waits for pending writes
        self._ids, self._out = ids, out

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return or raise without waiting."""
        return self._request is None or self._request.is_done

    def wait(self) -> Tensor:
        """Wait for the rows and return them.

        Raises:
            OSError: If they cannot be read; `tg.tables.DamagedFile`, a subclass, if they are
                not what was written.
        """
        if self._request is not None:
            self._request.wait()
        return self._out

    def __del__(self) -> None:
        self._request = None


class RowStorage:
    """Base class of placements: rows of `row_bytes` bytes each, by number.

    One thread changes them at a time, while any number may gather rows that existed before.
    """

    placement: str
    row_bytes: int
    gpu: Device | None = None
    """GPU whose kernels read the rows."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        raise NotImplementedError

    @property
    def view(self) -> TableView | None:
        """View for a GPU's kernels; None where kernels cannot read the rows."""
        return None

    def take_over(self, view: TableView, size: int) -> None:
        """Point captured gathers of another placement's rows to these, if kernels can read them."""
        view.readers.writing()
        view.publish(0, 0)

    @property
    def num_rows(self) -> int:
        """Rows in the file; 0 in memory."""
        return 0

    def append(self, rows: Tensor, size: int) -> None:
        """Append `rows`, contiguous uint8 `[N, row_bytes]` on any device, after `size` rows."""
        raise NotImplementedError

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite the rows of `ids`, int64 `[N]`, each once."""
        raise NotImplementedError

    def start(self, ids: Tensor, out: Tensor, size: int) -> _native.RowRequest | None:
        """Start a gather on the CPU; None if it is already done, as for rows in memory."""
        self.gather(ids, out, size)
        return None

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Copy the rows of `ids`, contiguous int64, to `out`, contiguous on the same device.

        A negative id gives zeros. Raises IndexError if one is not below `size`.
        """
        raise NotImplementedError

    def read(self, start: int, stop: int) -> Tensor:
        """Return existing rows, uint8 `[stop - start, row_bytes]` on the CPU."""
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        """Remove the rows from `size` on."""

    def forget(self, first: int) -> None:
        """Free the rows before `first`, where the placement can; appends follow them."""

    def sync(self) -> None:
        """Make appended rows as durable as the placement can."""

    def close(self) -> None:
        """Release everything; waits for running reads."""
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
    """Return the output for the rows of `ids`: a new tensor, or `out`; ValueError if invalid."""
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


def host_rows_like(out: Tensor) -> Tensor:
    """Return host memory of the shape and dtype of `out`, pinned to be copied to its GPU."""
    if not has_device(out.device):
        return torch.empty(out.shape, dtype=out.dtype)
    return device_of(out.device).allocate_host(out.nbytes).view(out.dtype).view(out.shape)


def _share_memory(ids: Tensor, out: Tensor) -> bool:
    if ids.untyped_storage().data_ptr() != out.untyped_storage().data_ptr():
        return False
    begin, end = out.data_ptr(), out.data_ptr() + out.nbytes
    reach = sum((n - 1) * step for n, step in zip(ids.shape, ids.stride(), strict=True))
    return ids.numel() > 0 and ids.data_ptr() < end and begin <= ids.data_ptr() + 8 * reach
