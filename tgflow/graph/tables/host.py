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
        addresses = min(max(_GROWTH * _machine_memory(), _LEAST_ADDRESSES), _MOST_ADDRESSES)
        self._memory: _native.ReservedMemory | None = _native.ReservedMemory(addresses)
        self._limit = memory_limit()
        self._bytes = torch.empty(0, dtype=torch.uint8)  # the committed part
        self.first = self.base = self._held = 0
        """Rows before `first` are freed; `base` is the row at the beginning of the memory."""
        self.may_move = True
        """Whether rows may move when addresses run out, which takes that some are freed."""
        self.commit(1)

    @property
    def nbytes(self) -> int:
        return max(0, self._held - (self.first - self.base) * self.row_bytes)

    @property
    def address(self) -> int:
        """Address of row 0, whether or not it is held."""
        return self._bytes.data_ptr() - self.base * self.row_bytes

    def read(self, start: int, stop: int) -> Tensor:
        start, stop = ((each - self.base) * self.row_bytes for each in (start, stop))
        return self._bytes[start:stop].view(-1, self.row_bytes)

    def append(self, rows: Tensor, size: int) -> None:
        self.reserve(size + len(rows))
        self.read(size, size + len(rows)).copy_(rows)

    def reserve(self, size: int) -> None:
        """Make room for `size` rows in all."""
        assert self._memory is not None
        if (size - self.base) * self.row_bytes > len(self._memory) and self.may_move:
            self._move()
        self.commit((size - self.base) * self.row_bytes)
        self._held = max(self._held, (size - self.base) * self.row_bytes)

    def _move(self) -> None:
        """Move the rows that are not freed to other addresses; readers continue at the old ones."""
        if self.first > self.base:
            held = self._held // self.row_bytes + self.base
            rows = self.read(self.first, max(self.first, held))
            made = HostRows(self.row_bytes)
            made.base = self.first
            made.reserve(self.first + len(rows))
            made.read(self.first, self.first + len(rows)).copy_(rows)
            self._memory, self._bytes, self._held = made._memory, made._bytes, made._held
            self.base = self.first

    def forget(self, first: int) -> None:
        """Free whole pages of the rows before `first`, which then read as zeros."""
        assert self._memory is not None
        if first > self.first:
            self.first = first
            self._memory.drop((first - self.base) * self.row_bytes)

    def commit(self, num_bytes: int) -> None:
        """Make the first `num_bytes` usable; raises MemoryError as `reserve`."""
        assert self._memory is not None
        freed = (self.first - self.base) * self.row_bytes
        if num_bytes - freed > self._limit:
            self._limit = memory_limit()
        room = min(self._limit + freed, len(self._memory))
        if num_bytes > room:
            raise MemoryError(
                f"cannot grow a host table to {num_bytes} bytes: there is memory for {room}; "
                'use placement="disk"'
            )
        self._memory.commit(num_bytes)
        if self._memory.committed > len(self._bytes):
            self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)

    def write(self, ids: Tensor, rows: Tensor) -> None:
        size, ids = self._held // self.row_bytes, (ids.cpu() - self.base).contiguous()
        _native.scatter_rows(self._bytes, self.row_bytes, size, ids, rows.cpu())

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        if not ids.is_cpu:
            pinned = host_rows_like(out)
            self.gather(ids.cpu(), pinned, size)
            out.copy_(pinned, non_blocking=True)
            return
        if self.base:  # of a table whose addresses have run out
            ids, size = torch.where(ids < 0, ids, ids - self.base), size - self.base
        _native.gather_rows(self._bytes, self.row_bytes, size, ids, out)

    def close(self) -> None:
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


def _machine_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
