"""Rows that GPU kernels read: in device memory, or in pinned host memory."""

from __future__ import annotations

import warnings
import weakref
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tgflow.cuda.device import after_captures
from tgflow.cuda.pinned import PinnedPool
from tgflow.cuda.rows import LINE, TableView
from tgflow.graph.tables.host import HostRows
from tgflow.graph.tables.table import RowStorage

if TYPE_CHECKING:
    from tgflow.cuda.device import Device, StreamEvent


_FIRST_ROWS = 1024
_SMALL_SHARE = 10
_MOST_STAGED = 16 << 20
"""Most bytes of an append that pass through pinned memory; a larger one waits for its copy."""


class DeviceRows(RowStorage):
    """Rows in one allocation of device memory, which is replaced by a larger one to grow."""

    placement = "device"
    gpu: Device

    def __init__(self, row_bytes: int, gpu: Device, budget: int | None = None) -> None:
        self.row_bytes = row_bytes
        self.gpu = gpu
        self._most = None if budget is None else budget // row_bytes
        self._view = TableView(gpu, row_bytes)
        self._readers = self._view.readers
        self._readers.wait_when_dropped(self)
        self._pinned = PinnedPool(gpu)
        self._bytes = gpu.allocate(0)
        self._first = self._base = 0
        """Rows before `_first` are freed; `_base` is the row at the beginning of the memory."""

    @property
    def view(self) -> TableView:
        return self._view

    @property
    def nbytes(self) -> int:
        return len(self._bytes)

    def append(self, rows: Tensor, size: int) -> None:
        """Append rows behind the first `size`; waits only for a bulk of host rows.

        Host rows are copied on the stream of inserts, which no training is queued on; rows on the
        device on the current stream, which made them.
        """
        self._view.check()
        gpu = self.gpu
        with gpu.on(gpu.stream("writer")) if rows.is_cpu else nullcontext():
            self._readers.writing()
            if (size + len(rows) - self._base) * self.row_bytes > len(self._bytes):
                self._grow(size, len(rows))
            target = self._held(size, size + len(rows))
            if rows.is_cpu and 0 < len(target) <= _MOST_STAGED:
                with self._pinned.lend(len(target)) as room:
                    gpu.copy_from_host(room.copy_(rows.view(-1)), out=target)
            else:
                target.copy_(rows.view(-1))
            self._publish(size + len(rows))
            self._readers.reclaim()

    def _publish(self, size: int) -> None:
        # the address of row 0, so that kernels find those that are held
        self._view.publish(self._bytes.data_ptr() - self._base * self.row_bytes, size)

    def _held(self, start: int, stop: int) -> Tensor:
        start, stop = ((each - self._base) * self.row_bytes for each in (start, stop))
        return self._bytes[start:stop]

    def _grow(self, size: int, num_rows: int) -> None:
        base = self._first // LINE * LINE
        held = size - base
        room = max(held + num_rows, held + held // 2, _FIRST_ROWS)
        if self._most is not None and room * _SMALL_SHARE > self._most:
            room = max(held + num_rows, self._most)
        grown = self.gpu.allocate(-(-room * self.row_bytes // LINE) * LINE)
        if size > self._base:
            kept = self._held(max(base, self._base), size)
            grown[held * self.row_bytes - len(kept) : held * self.row_bytes] = kept
        self._readers.published()  # before readers can reach it
        old, self._bytes, self._base = self._bytes, grown, base
        self._readers.retire(old, in_host=True)  # it may be of another stream

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite some rows, ordered after earlier kernels; does not synchronize."""
        self._view.check()
        self._view.scatter(ids, rows, in_place=False)

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Copy rows; for ids on the GPU does not synchronize."""
        self._view.check()
        device = self.gpu.device
        if ids.device != device:
            if (most := int(ids.max())) >= size:
                raise IndexError(f"id {most} is not in a table of {size} rows")
            there = torch.empty(out.shape, dtype=out.dtype, device=device)
            self.gather(ids.to(device), there, size)
            out.copy_(there)
            return
        self._view.gather(ids, out, in_place=False)

    def read(self, start: int, stop: int) -> Tensor:
        """Return a copy of some rows; synchronizes."""
        with self._readers.reading():
            part = self._held(start, stop)
            return part.view(-1, self.row_bytes).to("cpu", copy=True)

    def truncate(self, size: int) -> None:
        self._readers.writing()
        self._publish(size)

    def forget(self, first: int) -> None:
        self._first = max(self._first, first)

    def close(self) -> None:
        self.gpu.synchronize()
        self._view.check()
        self._bytes, self._base = self._bytes[:0], 0
        self._publish(0)


_PAGES = 2 << 20
_MOST_AHEAD = 256 << 20
_AHEAD_SHARE = 4


def _release(gpu: Device, rows: HostRows, pieces: list[int]) -> None:
    """Unregister `pieces`; takes `rows` to keep their memory alive until then."""
    if pieces:
        gpu.synchronize()
    for address in pieces:
        gpu.unregister(address)
    pieces.clear()


class UvaRows(RowStorage):
    """Host rows whose memory a GPU reads over the bus, without a copy by the CPU."""

    placement = "uva"
    gpu: Device

    def __init__(self, row_bytes: int, gpu: Device) -> None:
        self.row_bytes = row_bytes
        self.gpu = gpu
        self._host = HostRows(row_bytes)
        self._host.may_move = False
        self._pieces: list[int] = []
        """Addresses of the host memory regions registered with the GPU, in order."""
        self._pinned = self._unpinned = 0
        """Bytes registered so far, and those of them that were released with their rows."""
        release = partial(_release, gpu, self._host, self._pieces)
        finalizer = weakref.finalize(self, after_captures, gpu, release)
        finalizer.atexit = False  # at exit the system frees all, and the driver may be gone
        self._view = TableView(gpu, row_bytes)
        self._view.readers.wait_when_dropped(self)
        self._written: StreamEvent | None = None
        self.staged = False
        """Whether rows are copied through a staging buffer."""

    @property
    def view(self) -> TableView | None:
        return None if self.staged else self._view

    def take_over(self, view: TableView, size: int) -> None:
        if self.staged:
            super().take_over(view, size)
            return
        view.readers.wait_when_dropped(self)
        view.readers.writing()
        self._view = view
        self._publish(size)

    @property
    def nbytes(self) -> int:
        return max(self._pinned - self._unpinned, self._host.nbytes)

    def append(self, rows: Tensor, size: int) -> None:
        """Append rows behind the first `size`; synchronizes for rows from a GPU."""
        self._view.check()
        self._host.reserve(size + len(rows))
        if not self.staged:
            self._pin(size + len(rows))
        self._host.append(rows, size)
        self._view.readers.writing()
        self._publish(size + len(rows))

    def _publish(self, size: int) -> None:
        """Make `size` rows visible to kernels, or none where kernels cannot read them."""
        self._view.publish(self._host.address, 0 if self.staged else size)

    def _pin(self, size: int) -> None:
        """Register the memory of the first `size` rows; stage rows where that fails."""
        num_bytes = size * self.row_bytes
        if num_bytes <= self._pinned:
            return
        ahead = min(self._pinned // _AHEAD_SHARE, _MOST_AHEAD)
        target = -(-max(num_bytes, self._pinned + ahead) // _PAGES) * _PAGES
        try:
            self._host.commit(target)
            address = self._host.address + self._pinned
            self.gpu.register(address, target - self._pinned)
            self._pieces.append(address)
            self._pinned = target
        except MemoryError as error:
            self.staged = True
            warnings.warn(
                f"this table's rows are copied to {self.gpu.device} through a buffer, "
                f"which is slower than reading them in place: {error}",
                RuntimeWarning,
                stacklevel=4,
            )

    def write(self, ids: Tensor, rows: Tensor) -> None:
        self._view.check()
        if self.staged:
            self.gpu.synchronize()
            self._host.write(ids, rows)
            return
        self._view.scatter(ids, rows, in_place=True)
        self._written = self.gpu.record_event()

    def forget(self, first: int) -> None:
        """Unpin and free the pieces of memory before row `first`; synchronizes if there are any."""
        start, end = self._host.address, self._host.address + first * self.row_bytes
        if not self._pinned:  # the memory begins with them
            self._pinned = self._unpinned = first * self.row_bytes // _PAGES * _PAGES
        ends = [*self._pieces[1:], start + self._pinned]
        dead = sum(each <= end for each in ends) if self._pieces else 0
        if dead:
            self.gpu.synchronize()
            for address in self._pieces[:dead]:
                self.gpu.unregister(address)
            self._unpinned = ends[dead - 1] - start
            del self._pieces[:dead]
        if self.staged or dead:
            self._host.forget(first if self.staged else self._unpinned // self.row_bytes)

    def _wait_for_writes(self) -> None:
        if self._written is not None and not self._written.query():
            self.gpu.synchronize()
        self._written = None

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Copy rows; for ids on the GPU does not synchronize, unless rows are staged."""
        self._view.check()
        if self.staged or ids.device != self.gpu.device:
            self._wait_for_writes()
            self._host.gather(ids, out, size)
            return
        self._view.gather(ids, out, in_place=True)

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows as a view. Waits for kernels that overwrite some."""
        self._wait_for_writes()
        return self._host.read(start, stop)

    def truncate(self, size: int) -> None:
        self._wait_for_writes()  # otherwise they could overwrite later appends
        self._view.readers.writing()
        self._publish(size)

    def close(self) -> None:
        self._view.publish(0, 0)
        _release(self.gpu, self._host, self._pieces)
        self._pinned = 0
        self._view.check()
        self._host.close()
