"""Rows in a file."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from tgflow.graph.tables import _native
from tgflow.graph.tables.table import RowStorage, host_rows_like

DEFAULT_BUDGET = 16 << 20
"""Bytes of buffers: 128 reads of 128 KB in flight."""


class DiskRows(RowStorage):
    """An append-only file of rows, read with O_DIRECT where the file system supports it."""

    placement = "disk"

    def __init__(
        self, row_bytes: int, kind: str, path: Path | None, budget: int, reads: str = "auto"
    ) -> None:
        self.row_bytes = row_bytes
        if "\0" in str(path):
            raise ValueError(f"path holds a null byte: {str(path)!r}")
        named, is_new = path, path is None or not path.exists()
        if named is None:
            descriptor, name = tempfile.mkstemp(suffix=".rows")
            os.close(descriptor)
            named = Path(name)
        self._file: _native.RowFile | None = _native.RowFile(str(named), row_bytes, kind)
        try:
            self._reader: _native.RowReader | None = _native.RowReader(self._file, budget, reads)
        except BaseException:
            if is_new:
                named.unlink()
            raise
        if path is None:
            named.unlink()
        self._is_changed = False
        self.way = self._reader.way
        """I/O method of reads: "io_uring with O_DIRECT", "pread with O_DIRECT" or similar."""

    @property
    def num_rows(self) -> int:
        return 0 if self._file is None else len(self._file)

    @property
    def nbytes(self) -> int:
        return 0 if self._reader is None else self._reader.buffer_bytes

    def append(self, rows: Tensor, size: int) -> None:
        assert self._file is not None
        self._is_changed = True
        self._file.append(rows.cpu())

    def truncate(self, size: int) -> None:
        assert self._file is not None
        self._is_changed = True
        self._file.truncate(size)

    def forget(self, first: int) -> None:
        assert self._file is not None
        self._is_changed = True
        self._file.forget(first)

    def sync(self) -> None:
        """Wait until all rows are on the disk."""
        assert self._file is not None
        self._file.sync()

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Raise io.UnsupportedOperation: rows on disk are never overwritten."""
        raise io.UnsupportedOperation(
            "a table on disk only grows; keep rows that change in another placement"
        )

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Read rows, and wait for them."""
        if ids.is_cpu:
            self.start(ids, out, size).wait()
            return
        pinned = host_rows_like(out)
        self.start(ids.cpu(), pinned, size).wait()
        out.copy_(pinned, non_blocking=True)

    def start(self, ids: Tensor, out: Tensor, size: int) -> _native.RowRequest:
        assert self._reader is not None
        request: _native.RowRequest = self._reader.start(ids, size, out)
        return request

    def read(self, start: int, stop: int) -> Tensor:
        rows = torch.empty(stop - start, self.row_bytes, dtype=torch.uint8)
        self.gather(torch.arange(start, stop), rows, stop)
        return rows

    def close(self) -> None:
        assert self._file is not None
        try:
            if self._is_changed:
                self._file.settle()
        finally:
            self._reader = self._file = None
