"""A table of feature rows by id, with one interface for all placements."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from tgflow.base.describe import described
from tgflow.graph.tables.host import HostRows
from tgflow.graph.tables.placements import Placement, places_of
from tgflow.graph.tables.table import PendingGather, RowStorage, check_ids, name_of, out_for

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tgflow.cuda.device import Device
    from tgflow.cuda.rows import TableView

_MOVED_AT_ONCE = 64 << 20


@described
class FeatureTable:
    """Rows of one width and dtype, by id. The placement never changes a result.

    One thread changes the table at a time, and any number may gather concurrently. When the
    table grows, replaced memory is freed after its readers are done.

    Args:
        dim: Width of a row, at least 1.
        dtype: Dtype of the rows; any of torch's.
        placement: "host": memory of the CPU. "device": memory of a GPU. "uva": pinned host memory,
            which a GPU reads in place (PyTorch-Direct, arXiv:2101.07956). "disk": an append-only
            file, see `sync`. "auto": the GPU's memory if `device` is one, else host memory; once
            rows exceed the budget or the free memory, pinned host memory if there is a GPU, else a
            file; beyond half of the host's memory, a file.
        budget: Bytes, or text such as "8GiB". For "auto": limit of the first placement; None: all
            free memory. For "disk": size of the buffers, of which at most 16 MiB are
            useful.
        path: File of "disk" and "auto". An existing one must hold rows of this kind; the table
            then starts with them, on disk. None: a temporary file, deleted with the table.
        device: "cuda", "cuda:1" or any `tgflow.cuda.device.Device`; "cuda" for placements that
            need a GPU.

    Raises:
        CudaError: If the GPU cannot be used; the message contains the cause.
        DamagedFile: If the file is not a table, or holds fewer rows than were synced.
        OSError: If the file cannot be opened, or is open elsewhere.
        ValueError: If an argument is invalid, or the file holds rows of another kind.

    Example:
        >>> table = tg.tables.FeatureTable(3)
        >>> table.append(torch.eye(3))
        0
        >>> table[torch.tensor([2, -1])].tolist()
        [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        dim: int,
        dtype: torch.dtype = torch.float32,
        placement: Placement = "auto",
        *,
        budget: int | str | None = None,
        path: str | Path | None = None,
        device: str | torch.device | Device | None = None,
    ) -> None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype must be a torch.dtype, got {dtype!r}")
        if index(dim) < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self.dim, self.dtype = index(dim), dtype
        """Width of a row; dtype of its elements."""
        self.path = None if path is None else Path(path)
        """File of the rows for placement "disk"; for "auto", where they may be moved to."""
        kind = f"{name_of(dtype)} [{dim}]"
        places = places_of(
            placement, dim * dtype.itemsize, kind, device=device, budget=budget, path=path
        )
        (first, self._room), *self._further = places
        self._rows = first()
        self._moving = threading.Lock()
        """Held to move the rows, and to launch a gather of rows that may move."""
        self._moved_from: TableView | None = None  # of captured gathers, until they end
        self._size = self._rows.num_rows
        self.first = 0
        """Rows before this id are freed, and read as zeros."""
        self.keeps_file = True
        """Whether a named file keeps freed rows, until `free_file`: checkpoints refer to it."""
        self._closed = False

    @classmethod
    def from_tensor(cls, x: Tensor | NDArray[np.generic], **options: Any) -> FeatureTable:
        """Return a table with a copy of the rows of `x`, `[N, dim]`.

        Args:
            x: A tensor on any device, or a numpy array, possibly a read-only memory map; row `i`
                gets id `i`.
            options: Arguments of the constructor after `dtype`.

        Raises:
            ValueError: If `x` has another shape.
        """
        with warnings.catch_warnings():  # a read-only array is only read
            warnings.filterwarnings("ignore", "The given NumPy array is not writ")
            rows = x if isinstance(x, Tensor) else torch.as_tensor(x)
        if rows.dim() != 2:
            raise ValueError(f"x must be [N, dim], got {list(rows.shape)}")
        table = cls(rows.shape[1], rows.dtype, **options)
        table.append(rows)
        return table

    def __len__(self) -> int:
        return self._size

    def _facts(self) -> dict[str, object]:
        return {
            "num_rows": len(self),
            "dim": self.dim,
            "dtype": name_of(self.dtype),
            "placement": self.placement,
        }

    @property
    def placement(self) -> str:
        """Current placement of the rows, never "auto"."""
        return self._rows.placement

    @property
    def stays_in_memory(self) -> bool:
        """Whether no row is or will ever be on disk."""
        return self.placement != "disk" and not self._further

    @property
    def view(self) -> TableView | None:
        """View for kernels and captured gathers; None where kernels cannot read the rows."""
        return self._rows.view

    @property
    def base(self) -> FeatureTable:
        """The table that stores the rows: this one."""
        return self

    @property
    def file(self) -> Path | None:
        """The named file that holds the rows and outlives the process; None without one."""
        return self.path if self.placement == "disk" else None

    def describe(self) -> dict[str, Any]:
        """Return a description of the table, JSON-serializable; sizes in bytes."""
        return {
            "rows": len(self),
            "row_bytes": self.dim * self.dtype.itemsize,
            "placement": self.placement,
            "memory_bytes": self.nbytes,
            "file": None if self.file is None else str(self.file),
        }

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._rows.nbytes

    def append(self, rows: Tensor) -> int:
        """Add `rows`, `[N, dim]` of the table's dtype on any device; return the first one's id.

        Raises:
            MemoryError: If there is no room for them; the table is as before.
            OSError: If a file cannot take them; the table is as before.
            ValueError: If they have another dtype or shape.
        """
        self.check(rows)
        first, stop, data = self._size, self._size + len(rows), _as_bytes(rows)
        while (stop - self.first) * self._rows.row_bytes > self._room and self._move():
            pass
        while True:
            try:
                self._rows.append(data, first)
                break
            except MemoryError:
                if not self._move():
                    raise
        self._size = stop
        return first

    def _move(self) -> bool:
        """Move all rows to the next placement, if any; readers continue in the old one."""
        while self._further:
            make, room = self._further[0]
            try:
                target = self._copied_to(make)
            except MemoryError:
                if len(self._further) == 1:
                    raise
                self._further.pop(0)
                continue
            with self._moving:
                old = self._rows
                if old.view is not None:
                    self._moved_from = old.view
                    target.take_over(old.view, self._size)
                self._rows, self._room = target, room
                self._further.pop(0)
            if old.gpu is not None:
                old.gpu.synchronize()  # kernels that read the old rows are done
            return True
        return False

    def _copied_to(self, make: Callable[[], RowStorage]) -> RowStorage:
        """Return an opened placement with all rows; one that has no room is left empty."""
        size, target = self._size, make()
        step = max(1, _MOVED_AT_ONCE // target.row_bytes)
        if target.num_rows:
            raise FileExistsError(
                "the file for rows that have no room in memory was not there when the table was "
                f"made, and now has {target.num_rows} that are not this table's; remove it"
            )
        try:
            target.forget(first := min(self.first, size))
            for start in range(first, size, step):
                target.append(self._rows.read(start, min(start + step, size)), start)
        except BaseException:
            with suppress(OSError):
                target.truncate(0)
                target.close()
            raise
        return target

    def truncate(self, size: int) -> None:
        """Remove the rows from id `size` on; their ids must not be in use."""
        self._check_open()
        if size < 0:
            raise ValueError(f"size must be at least 0, got {size}")
        if size < self.first:
            raise ValueError(f"rows before {self.first} were freed, and cannot be the last: {size}")
        if size < self._size:
            self._size = size
            self._rows.truncate(size)

    def forget(self, first: int) -> None:
        """Free the rows before id `first`, which must not be asked for again; ids stay the same.

        A table with fewer rows continues with id `first`. GPU memory is freed when it is next full.
        """
        self._check_open()
        if first > self.first:
            self.first = first
            if self._size < first or self.file is None or not self.keeps_file:
                self._rows.forget(first)
            self._size = max(self._size, first)

    def free_file(self, first: int) -> None:
        """Free the disk space of the rows before id `first` in a named file; any thread may."""
        if self.file is not None and first <= self.first:
            self._rows.forget(first)

    def check(self, rows: Tensor) -> None:
        """Raise ValueError unless `rows` can be appended."""
        self._check_open()
        if not isinstance(rows, Tensor):
            raise TypeError(f"rows must be a tensor, got {type(rows).__name__}")
        if rows.dtype != self.dtype or rows.dim() != 2 or rows.shape[1] != self.dim:
            raise ValueError(
                f"rows must be {name_of(self.dtype)} [N, {self.dim}], "
                f"got {name_of(rows.dtype)} {list(rows.shape)}"
            )

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows of `ids`, int64 of any shape `[...]`, as `[..., dim]` on their device.

        An id of -1 gives a row of zeros. Does not synchronize where ids and kernels are on one
        GPU. There an id that is not in the table gives zeros, and the next call after the kernel
        finishes raises the IndexError: a gather, an append, or at the latest `close`.

        Args:
            ids: Ids below `len(self)`, or -1.
            out: Contiguous `[..., dim]` of the table's dtype, on the ids' device, to fill and
                return instead of a new tensor.

        Raises:
            ValueError: If `ids` or `out` has another dtype or shape, their devices differ, or they
                share memory.
            IndexError: If an id is not below `len(self)`.
        """
        self._check_open()
        check_ids(ids)
        out = out_for(ids, out, self.dim, self.dtype)
        may_move = self._further and not ids.is_cpu
        with self._moving if may_move else nullcontext():
            if ids.numel() > 0:
                self._rows.gather(ids.contiguous(), out, self._size)
        return out

    def start_gather(self, ids: Tensor, out: Tensor | None = None) -> PendingGather:
        """Start to gather rows on the CPU, for example of the next batches during a training step.

        Reads from a file are asynchronous, many requests at a time; other placements copy at once.

        Args:
            ids: As `gather`, on the CPU; must not change before the rows are there.
            out: As `gather`.
        """
        self._check_open()
        check_ids(ids)
        if not ids.is_cpu:
            raise ValueError(f"ids must be on the CPU, got {ids.device}")
        out, ids = out_for(ids, out, self.dim, self.dtype), ids.contiguous()
        request = self._rows.start(ids, out, self._size) if ids.numel() > 0 else None
        return PendingGather(out, ids, request)

    def __getitem__(self, ids: Tensor) -> Tensor:
        """Return `gather(ids)`."""
        return self.gather(ids)

    def read(self, start: int, stop: int) -> Tensor:
        """Return the rows `[start, stop)` on the CPU; later appends do not change them.

        In host memory this is a view that reflects `scatter_`; elsewhere a copy, which
        synchronizes with a GPU.

        Raises:
            IndexError: If the table does not hold them.
        """
        self._check_open()
        if not 0 <= start <= stop <= self._size:
            raise IndexError(f"the table holds rows [0, {self._size}), got [{start}, {stop})")
        if start >= self.first:
            return self._rows.read(start, stop).view(self.dtype)
        rows = torch.zeros(stop - start, self.dim, dtype=self.dtype)
        if stop > self.first:
            rows[self.first - start :] = self.read(self.first, stop)
        return rows

    @property
    def in_memory(self) -> Tensor | None:
        """All rows as a view, `[N, dim]`, where they are in host memory; None elsewhere.

        Later appends, and moves to another placement, do not change it.
        """
        self._check_open()
        size, rows = self._size, self._rows
        is_here = isinstance(rows, HostRows) and not rows.base
        return rows.read(0, size).view(self.dtype) if is_here else None

    def scatter_(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite the rows of `ids`, on a GPU in the order of the current stream.

        A concurrent gather may see old rows, new ones or some of both. Ids on a GPU are not checked
        by the host: the caller must ensure that each is given once, otherwise the row is a mix of
        the values given. An id that is not in the table is skipped and reported as `gather` reports
        it. Does not synchronize if ids, rows and kernels are on one GPU.

        Args:
            ids: int64 `[N]`, each below `len(self)` and given once; on the CPU that is checked.
            rows: `[N, dim]` of the table's dtype.

        Raises:
            ValueError: If a dtype or shape is wrong or an id comes twice.
            IndexError: If an id is not in the table. Nothing is changed then.
        """
        self.check(rows)
        if ids.dtype != torch.int64 or ids.shape != rows.shape[:1]:
            raise ValueError(
                f"ids must be int64 [{len(rows)}], got {name_of(ids.dtype)} {list(ids.shape)}"
            )
        if ids.is_cpu or self.view is None:
            check_unique(ids, self._size)
        self._rows.write(ids, _as_bytes(rows))

    def sync(self) -> None:
        """Return once all rows so far are durable: those of a file survive a power failure.

        Any thread may call it, while another appends.

        Rows that were appended and not synced survive the end of the process, also by a kill, but a
        power failure may lose the last of them; a file is then opened with its complete rows.

        Raises:
            OSError: If the disk fails; the file then rejects appends until it is opened again.
        """
        self._check_open()
        self._rows.sync()

    def close(self) -> None:
        """Release everything, once a GPU has done its work; a file is synced and kept."""
        if not self._closed:
            self._closed, self._size = True, 0
            self._rows.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise TypeError: a table owns memory or a file and cannot be pickled or copied."""
        raise TypeError(
            "a table cannot be pickled or copied, nor an object that holds one, such as a model "
            "with memory in a table; make a new one of its rows: "
            "tg.tables.FeatureTable.from_tensor(table.read(0, len(table)))"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this table is closed")


def check_unique(ids: Tensor, size: int) -> None:
    """Raise unless every id of `ids`, int64 `[N]`, is in `[0, size)` and occurs once."""
    if len(ids) == 0:
        return
    ordered = ids.sort().values
    for id in (int(ordered[0]), int(ordered[-1])):
        if not 0 <= id < size:
            raise IndexError(f"id {id} is not in a table of {size} rows")
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise ValueError(f"ids must be unique, got {int(twice[0])} twice")


def _as_bytes(rows: Tensor) -> Tensor:
    return rows.detach().resolve_conj().resolve_neg().contiguous().view(torch.uint8)
