"""A table of feature rows by id: one interface, wherever the rows are."""

from __future__ import annotations

import warnings
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from tgflow.describe import described
from tgflow.tables.host import HostRows
from tgflow.tables.placements import AutoRows, Placement, open_storage
from tgflow.tables.table import PendingGather, check_ids, name_of, out_for

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tgflow.cuda.device import Device
    from tgflow.cuda.rows import TableView


@described
class FeatureTable:
    """Rows of one width and dtype, by id. Where they are kept never changes an answer.

    One thread changes the table at a time, and any number may gather meanwhile. Memory that
    growing replaces stays until its readers are done.

    Args:
        dim: Width of a row, at least 1.
        dtype: Of the rows; any of torch's.
        placement: "host": memory of the CPU. "device": memory of a GPU. "uva": pinned host memory,
            which a GPU reads in place (PyTorch-Direct, arXiv:2101.07956). "disk": an append-only
            file, see `sync`. "auto": the GPU's memory if `device` is one, else host memory; from
            where rows exceed the budget or it has no room for them, pinned host memory if there
            is a GPU, else a file; from half of the host's memory on a file.
        budget: Bytes, or text such as "8GiB". Of "auto": what rows may take in the first place;
            None: as much as there is room for. Of "disk": for buffers, of which 16 MiB at most
            are of use.
        path: Of "disk" and "auto": the file. One that is there must hold such rows; the table then
            begins with them, on disk. None: a temporary file that goes with the table.
        device: "cuda", "cuda:1" or any `tgflow.cuda.device.Device`; "cuda" for the placements that
            need one.

    Raises:
        CudaError: If the GPU cannot be used; the message says what is missing.
        DamagedFile: If the file is no table, or holds fewer rows than were synced.
        OSError: If the file cannot be opened, or is open elsewhere.
        ValueError: If an argument is none of these, or the file holds other rows.

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
        """Width of a row; what its elements are."""
        self.path = None if path is None else Path(path)
        """The file for its rows: of placement "disk" theirs, of "auto" where they may go."""
        self._rows = open_storage(
            placement,
            dim * dtype.itemsize,
            f"{name_of(dtype)} [{dim}]",
            device=device,
            budget=budget,
            path=path,
        )
        self._size = self._rows.num_rows
        self._closed = False

    @classmethod
    def from_tensor(cls, x: Tensor | NDArray[np.generic], **options: Any) -> FeatureTable:
        """Return a table with a copy of the rows of `x`, `[N, dim]`.

        Args:
            x: A tensor on any device, or a numpy array, perhaps a read-only map of a file; row `i`
                gets id `i`.
            options: As the constructor takes them after `dtype`.

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
        """Where the rows are now: "auto" is none of the answers."""
        return self._rows.placement

    @property
    def stays_in_memory(self) -> bool:
        """Whether no row is on disk, now or after the table has grown."""
        return self.placement in ("host", "uva", "device") and not isinstance(self._rows, AutoRows)

    @property
    def view(self) -> TableView | None:
        """What a GPU's kernels read, and a captured gather finds; None where they cannot."""
        return self._rows.view

    @property
    def base(self) -> FeatureTable:
        """The table that has the rows: this one."""
        return self

    @property
    def file(self) -> Path | None:
        """The file with a name in which the rows are now, and outlive the process; else None."""
        return self.path if self.placement == "disk" else None

    def describe(self) -> dict[str, Any]:
        """Return what there is to say of the table, as JSON has it: sizes in bytes."""
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
        first = self._size
        self._rows.append(_as_bytes(rows), first)
        self._size = first + len(rows)
        return first

    def truncate(self, size: int) -> None:
        """Remove the rows from id `size` on, which nobody may know yet."""
        self._check_open()
        if size < 0:
            raise ValueError(f"size must be at least 0, got {size}")
        if size < self._size:
            self._size = size
            self._rows.truncate(size)

    def check(self, rows: Tensor) -> None:
        """Raise ValueError unless `rows` could be appended."""
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
        is done raises the IndexError: a gather, an append, or at the latest `close`.

        Args:
            ids: Ids below `len(self)`, or -1.
            out: Contiguous `[..., dim]` of the table's dtype, on the ids' device, to fill and
                return instead of a new tensor.

        Raises:
            ValueError: If `ids` or `out` has another dtype or shape, they are not together, or they
                share memory.
            IndexError: If an id is not below `len(self)`.
        """
        self._check_open()
        check_ids(ids)
        out = out_for(ids, out, self.dim, self.dtype)
        if ids.numel() > 0:
            self._rows.gather(ids.contiguous(), out, self._size)
        return out

    def start_gather(self, ids: Tensor, out: Tensor | None = None) -> PendingGather:
        """Begin to gather rows on the CPU: those of the next batches, while this one is computed.

        From a file they come meanwhile, many requests at a time; elsewhere they are there at once.

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
        """Return the rows `[start, stop)` on the CPU, which later appends leave as they are.

        In host memory that is a view, and `scatter_` shows in it; elsewhere a copy, which
        synchronizes with a GPU.

        Raises:
            IndexError: If the table does not hold them.
        """
        self._check_open()
        if not 0 <= start <= stop <= self._size:
            raise IndexError(f"the table holds rows [0, {self._size}), asked for [{start}, {stop})")
        return self._rows.read(start, stop).view(self.dtype)

    @property
    def in_memory(self) -> Tensor | None:
        """All rows as a view, `[N, dim]`, where they are in host memory; None elsewhere.

        Later appends leave it as it is, and so do rows that move elsewhere.
        """
        self._check_open()
        size = self._size
        rows = self._rows.current if isinstance(self._rows, AutoRows) else self._rows
        return rows.read(0, size).view(self.dtype) if isinstance(rows, HostRows) else None

    def scatter_(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite the rows of `ids`, on a GPU in the order of the current stream.

        A gather that runs meanwhile may see old rows, new ones or some of both. Ids on a GPU are
        not looked at by the host: that each comes once is the caller's word, and the row of one
        that comes twice becomes some of both; one that is not in the table is left out, and found
        as `gather` finds it. Does not synchronize if ids, rows and kernels are on one GPU.

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
        """Return once all rows so far are safe: those of a file on its disk, even without power.

        Any thread may call it, while another appends.

        Rows that were appended and not synced outlive the process, killed or not, but a power
        failure may cost the last of them; a file is then opened with its whole rows.

        Raises:
            OSError: If the disk fails; the file takes no more rows then, until it is opened again.
        """
        self._check_open()
        self._rows.sync()

    def close(self) -> None:
        """Give everything back, once a GPU has done its work; a file is synced, and stays."""
        if not self._closed:
            self._closed, self._size = True, 0
            self._rows.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled or copied: one table has the memory, or the file."""
        raise TypeError(
            "a table is not pickled or copied, nor is what holds one, such as a model whose memory "
            "is in a table; make a new one of its rows: "
            "tg.tables.FeatureTable.from_tensor(table.read(0, len(table)))"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this table is closed")


def check_unique(ids: Tensor, size: int) -> None:
    """Raise unless every id of `ids`, int64 `[N]`, is in `[0, size)` and comes once."""
    if len(ids) == 0:
        return
    ordered = ids.sort().values
    for id in (int(ordered[0]), int(ordered[-1])):
        if not 0 <= id < size:
            raise IndexError(f"id {id} is not in a table of {size} rows")
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise ValueError(f"ids must be unique, and {int(twice[0])} comes twice")


def _as_bytes(rows: Tensor) -> Tensor:
    return rows.detach().resolve_conj().resolve_neg().contiguous().view(torch.uint8)
