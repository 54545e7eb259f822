"""Rows in pinned host memory, read in place by kernels."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torch import Tensor

from tgflow.tables.gpu_view import GpuView
from tgflow.tables.host import HostRows
from tgflow.tables.pinned import PinnedRegion

if TYPE_CHECKING:
    from tgflow.cuda.device import Device, StreamEvent


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
        self._view = GpuView(gpu, row_bytes)
        self._view.readers.wait_when_dropped(self)
        self._written: StreamEvent | None = None
        self.staged = False
        """Whether rows are copied through a buffer."""

    @property
    def view(self) -> GpuView | None:
        """What kernels read; None where rows are staged."""
        return None if self.staged else self._view

    def adopt(self, view: GpuView, size: int) -> None:
        """Go on with the view of another placement, all of whose rows are here now."""
        view.readers.wait_when_dropped(self)
        view.readers.writing()
        self._view = view
        self._publish(size)

    @property
    def nbytes(self) -> int:
        """Bytes pinned, room for growth included; of all rows where they are not."""
        return max(self._region.num_bytes, self._host.nbytes)

    def append(self, rows: Tensor, size: int) -> None:
        """Copy rows behind the first `size`; from a GPU that synchronizes."""
        self._view.check()
        self._host.reserve(size + len(rows))
        if not self.staged:
            self._pin(size + len(rows))
        self._host.append(rows, size)
        self._view.readers.writing()
        self._publish(size + len(rows))

    def _publish(self, size: int) -> None:
        """Let kernels find `size` rows here, or none where they cannot read them."""
        self._view.publish(self._host.address, 0 if self.staged else size)

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
        """Overwrite some rows, behind kernels that were launched before.

        Does not synchronize, unless rows are staged: kernels write to the host's memory.
        """
        self._view.check()
        if self.staged:
            self._gpu.synchronize()
            self._host.write(ids, rows)
            return
        self._view.scatter(ids, rows, in_place=True)
        self._written = self._gpu.record_event()

    def _wait_for_writes(self) -> None:
        """Have the host wait until what kernels have written is there for it to read."""
        if self._written is not None and not self._written.query():
            self._gpu.synchronize()
        self._written = None

    @property
    def num_rows(self) -> int:
        """None outlive a process in memory."""
        return 0

    def start(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Gather at once: rows in memory are not waited for."""
        self.gather(ids, out, size)

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Copy rows; for ids on the GPU does not synchronize, unless rows are staged."""
        self._view.check()
        if self.staged or ids.device != self._gpu.device:
            self._wait_for_writes()
            self._host.gather(ids, out, size)
            return
        self._view.gather(ids, out, in_place=True)

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows: a view. Waits for kernels that overwrite some."""
        self._wait_for_writes()
        return self._host.read(start, stop)

    def truncate(self, size: int) -> None:
        """Let kernels find no more than `size` rows; what is appended next overwrites."""
        self._wait_for_writes()  # or they would overwrite what is appended
        self._view.readers.writing()
        self._publish(size)

    def sync(self) -> None:
        """Do nothing: memory does not outlive the process."""

    def close(self) -> None:
        """Unpin and let go of the memory, once the GPU has done its work."""
        self._view.publish(0, 0)
        self._region.release()
        self._view.check()
        self._host.close()
