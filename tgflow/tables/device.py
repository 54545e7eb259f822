"""Rows in a device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tgflow.cuda.rows import LINE
from tgflow.tables.gpu_view import GpuView

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

_FIRST_ROWS = 1024
_SMALL_SHARE = 10


class DeviceRows:
    """Rows in one piece of device memory, which grows by moving.

    Kernels in flight on any stream keep the piece that they read until they are done.

    Args:
        row_bytes: Of a row.
        gpu: Whose memory and kernels.
        budget: Bytes that rows may take. From a tenth of it on they have all of it, so that both
            pieces of a move exceed it by a tenth at most. None: half as much again at each move.
    """

    placement = "device"

    def __init__(self, row_bytes: int, gpu: Device, budget: int | None = None) -> None:
        self.row_bytes = row_bytes
        self._gpu = gpu
        self._most = None if budget is None else budget // row_bytes
        self.view = GpuView(gpu, row_bytes)
        """What kernels read."""
        self._readers = self.view.readers
        self._readers.wait_when_dropped(self)
        self._bytes = gpu.allocate(0)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, room for growth included."""
        return len(self._bytes)

    def append(self, rows: Tensor, size: int) -> None:
        """Copy rows behind the first `size` on the current stream; waits for pinned ones alone.

        What lies in other host memory has left it when this returns, and what is pinned would not.
        """
        self.view.check()
        self._readers.writing()
        end = (size + len(rows)) * self.row_bytes
        if end > len(self._bytes):
            self._grow(size, len(rows))
        target = self._bytes[size * self.row_bytes : end].view(-1, self.row_bytes)
        target.copy_(rows, non_blocking=not rows.is_pinned())
        self._publish(size + len(rows))
        self._readers.reclaim()

    def _publish(self, size: int) -> None:
        self.view.publish(self._bytes.data_ptr(), size)

    def _grow(self, size: int, num_rows: int) -> None:
        room = max(size + num_rows, size + size // 2, _FIRST_ROWS)
        if self._most is not None and room * _SMALL_SHARE > self._most:
            room = max(size + num_rows, self._most)
        grown = self._gpu.allocate(-(-room * self.row_bytes // LINE) * LINE)
        grown[: size * self.row_bytes] = self._bytes[: size * self.row_bytes]
        self._readers.published()  # before anyone can reach it
        old, self._bytes = self._bytes, grown
        self._readers.retire((old, None))

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite some rows, behind kernels that were launched before; does not synchronize."""
        self.view.check()
        self.view.scatter(ids, rows, in_place=False)

    @property
    def num_rows(self) -> int:
        """None outlive a process in memory."""
        return 0

    def start(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Gather at once: rows in memory are not waited for."""
        self.gather(ids, out, size)

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Copy rows; for ids on the GPU does not synchronize."""
        self.view.check()
        device = self._gpu.device
        if ids.device != device:
            _check_ids(ids, size)
            there = torch.empty(out.shape, dtype=out.dtype, device=device)
            self.gather(ids.to(device), there, size)
            out.copy_(there)
            return
        self.view.gather(ids, out, in_place=False)

    def read(self, start: int, stop: int) -> Tensor:
        """Return a copy of some rows; synchronizes."""
        with self._readers.reading():
            part = self._bytes[start * self.row_bytes : stop * self.row_bytes]
            return part.view(-1, self.row_bytes).to("cpu", copy=True)

    def truncate(self, size: int) -> None:
        """Let kernels find no more than `size` rows; what is appended next overwrites."""
        self._readers.writing()
        self._publish(size)

    def sync(self) -> None:
        """Do nothing: memory does not outlive the process."""

    def close(self) -> None:
        """Let go of the memory, once the GPU has done its work."""
        self._gpu.synchronize()
        self.view.check()
        self._bytes = self._bytes[:0]
        self._publish(0)


def _check_ids(ids: Tensor, size: int) -> None:
    most = int(ids.max())
    if most >= size:
        raise IndexError(f"id {most} is not in a table of {size} rows")
