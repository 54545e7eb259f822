"""Rows in host memory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from tgflow.graph.tables import _native
from tgflow.graph.tables.table import RowStorage, host_rows_like

_LEAST_ADDRESSES, _MOST_ADDRESSES = 1 << 38, 1 << 40
"""Bounds of the address space reserved per table: a process has room for hundreds."""
_GROWTH = 4
"""Reserved addresses per byte of present memory, as a machine's memory may grow."""
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class HostRows(RowStorage):
    """Rows at a fixed address: more address space than the machine's memory is reserved."""

    placement = "host"

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self._memory: _native.ReservedMemory | None = _native.ReservedMemory(_address_space())
        self._limit = memory_limit()
        self._bytes = torch.empty(0, dtype=torch.uint8)  # the committed part
        self.commit(1)
        self._held = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the largest number of rows held at once."""
        return self._held

    @property
    def address(self) -> int:
        """Address of row 0."""
        return self._bytes.data_ptr()

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows, uint8 `[stop - start, row_bytes]`: a view."""
        return self._bytes[start * self.row_bytes : stop * self.row_bytes].view(-1, self.row_bytes)

    def append(self, rows: Tensor, size: int) -> None:
        """Append `rows` behind the first `size`."""
        self.reserve(size + len(rows))
        self.read(size, size + len(rows)).copy_(rows)

    def reserve(self, size: int) -> None:
        """Make room for `size` rows in all."""
        self.commit(size * self.row_bytes)
        self._held = max(self._held, size * self.row_bytes)

    def commit(self, num_bytes: int) -> None:
        """Make the first `num_bytes` usable; raises MemoryError as `reserve`."""
        assert self._memory is not None
        if num_bytes > self._limit:
            self._limit = memory_limit()
        room = min(self._limit, len(self._memory))
        if num_bytes > room:
            raise MemoryError(
                f"cannot grow a host table to {num_bytes} bytes: there is memory for {room}; "
                'use placement="disk"'
            )
        self._memory.commit(num_bytes)
        if self._memory.committed > len(self._bytes):
            self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite some rows."""
        size = self._held // self.row_bytes
        _native.scatter_rows(self._bytes, self.row_bytes, size, ids.cpu().contiguous(), rows.cpu())

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Copy rows with the core's threads; `out` on another device is filled through a copy."""
        if not ids.is_cpu:
            pinned = host_rows_like(out)
            self.gather(ids.cpu(), pinned, size)
            out.copy_(pinned, non_blocking=True)
            return
        _native.gather_rows(self._bytes, self.row_bytes, size, ids, out)

    def close(self) -> None:
        """Release the memory; it is freed with its last view."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._memory, self._held = None, 0


def memory_limit() -> int:
    """Return the memory limit of this process in bytes: its container's, else the machine's."""
    for file in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # missing, or "max"
            limit = int(file.read_text(encoding="ascii"))
            if limit < _MOST_ADDRESSES:
                return limit
    return _machine_memory()


def _address_space() -> int:
    return min(max(_GROWTH * _machine_memory(), _LEAST_ADDRESSES), _MOST_ADDRESSES)


def _machine_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
