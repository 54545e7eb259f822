"""Rows in pinned host memory, read in place by kernels."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tgflow.cuda.gather import gather
from tgflow.tables.host import HostRows
from tgflow.tables.out_of_range import OutOfRangeFlag
from tgflow.tables.pinned import PinnedRegion

if TYPE_CHECKING:
    from tgflow.cuda.device import Device


class UvaRows:
    """Host rows whose memory a GPU reads over its bus, without a copy by the CPU.

    Where the host cannot pin that memory, rows are gathered on the CPU into a pinned buffer and
    copied; a RuntimeWarning says so once.
    """

    placement = "uva"

    def __init__(self, row_bytes: int, gpu: Device) -> None:
        self.row_bytes = row_bytes
        self._gpu = gpu
        self._host = HostRows(row_bytes)
        self._region = PinnedRegion(gpu, self._host)
        self._wrong = OutOfRangeFlag(gpu)
        self.staged = False
        """Whether rows are copied through a buffer."""

    @property
    def nbytes(self) -> int:
        """Bytes pinned, room for growth included; of all rows where they are not."""
        return max(self._region.num_bytes, self._host.nbytes)

    def append(self, rows: Tensor, size: int) -> None:
        """Copy rows behind the first `size`; from a GPU that synchronizes."""
        self._wrong.check()
        self._host.reserve(size + len(rows))
        if not self.staged:
            self._pin(size + len(rows))
        self._host.append(rows, size)

    def _pin(self, size: int) -> None:
        try:
            self._region.ensure(size * self.row_bytes)
        except MemoryError as error:
            self.staged = True
            warnings.warn(
                f"this table's rows are copied to {self._gpu.device} through a buffer, "
                f"which is slower than reading them in place: {error}",
                RuntimeWarning,
                stacklevel=4,
            )

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite some rows, behind kernels that were launched before: waits for the GPU."""
        self._gpu.synchronize()
        self._host.write(ids, rows)

    @property
    def num_rows(self) -> int:
        """None outlive a process in memory."""
        return 0

    def start(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Gather at once: rows in memory are not waited for."""
        self.gather(ids, out, size)

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Copy rows; for ids on the GPU does not synchronize, unless rows are staged."""
        self._wrong.check()
        if self.staged or ids.device != self._gpu.device:
            self._host.gather(ids, out, size)
            return
        where = (self._host.address, self.row_bytes, size)
        gather(self._gpu, *where, ids, out, self._wrong.flag, in_place=True)

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows: a view."""
        return self._host.read(start, stop)

    def truncate(self, size: int) -> None:
        """Forget nothing: what is appended next overwrites."""

    def sync(self) -> None:
        """Do nothing: memory does not outlive the process."""

    def close(self) -> None:
        """Unpin and let go of the memory, once the GPU has done its work."""
        self._region.release()
        self._wrong.check()
        self._host.close()
        self._wrong.flag = torch.empty(0, dtype=torch.int64)
