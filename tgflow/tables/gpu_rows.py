"""Rows that kernels of a GPU read: in its memory, or in pinned host memory."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tgflow.cuda.readers import Readers
from tgflow.cuda.rows import LINE, TableView, gather, scatter
from tgflow.tables.host import HostRows

if TYPE_CHECKING:
    from tgflow.cuda.device import Device, StreamEvent


class GpuView:
    """A table as kernels on any stream read it, and as one stream at a time changes it.

    Goes with the rows from placement to placement, so that a captured gather finds them all the
    same. What it was when a call returns is what calls on other streams see from then on.

    Args:
        gpu: Whose kernels.
        row_bytes: Of a row.
    """

    def __init__(self, gpu: Device, row_bytes: int) -> None:
        self._gpu, self._row_bytes = gpu, row_bytes
        self.readers = Readers(gpu)
        """Who may still read; whoever has the rows lets go of them, and of this, behind those."""
        self._table = TableView(gpu)
        self._wrong = OutOfRangeFlag(gpu)

    @property
    def address(self) -> int:
        """Of the view in device memory (cuda/table_view.hpp)."""
        return self._table.address

    def check(self) -> None:
        """Raise IndexError if a call that is done by now was asked for a row that is not there."""
        self._wrong.check()

    def publish(self, rows: int, size: int) -> None:
        """Say that `size` rows are at address `rows`, behind what the current stream has written.

        Between `readers.writing` and the next call of another stream.
        """
        self._table.publish(rows, size)
        self.readers.published()

    def gather(self, ids: Tensor, out: Tensor, *, in_place: bool) -> None:
        """Copy rows; all on the GPU, and nobody waits."""
        with self.readers.reading():
            where = (self._gpu, self._table, self._row_bytes)
            gather(*where, ids, out, self._wrong.flag, in_place=in_place)

    def scatter(self, ids: Tensor, rows: Tensor, *, in_place: bool) -> None:
        """Overwrite rows, behind what was launched before on any stream; the host goes on."""
        device = self._gpu.device
        ids, rows = (each.to(device, non_blocking=True).contiguous() for each in (ids, rows))
        self.readers.writing()
        self.readers.wait()
        if len(ids) > 0:
            where = (self._gpu, self._table, self._row_bytes)
            scatter(*where, ids, rows, self._wrong.flag, in_place=in_place)
        self.readers.published()


_NONE = -(2**63)


class OutOfRangeFlag:
    """A word that kernels write and the host reads: the id of a row that is not there."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self.flag = gpu.allocate_host(8).view(torch.int64)
        self.flag.fill_(_NONE)

    def check(self) -> None:
        """Raise IndexError if a call that is done by now was asked for a row that is not there.

        A gather has given zeros for it, a scatter has left it out. Does not synchronize: what still
        runs is not waited for.
        """
        id = int(self.flag[0])
        if id == _NONE:
            return
        self.flag.fill_(_NONE)
        raise IndexError(
            f"an earlier call on {self._gpu.device} was asked for id {id}, which was not in "
            "the table; it gave zeros, or wrote nothing"
        )


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


_PAGES = 2 << 20
_MOST_AHEAD = 256 << 20
_AHEAD_SHARE = 4


class PinnedRegion:
    """The beginning of some rows' memory, registered with a GPU; owns that, and releases it.

    Rows do not move as they grow, so a longer beginning is one piece more: what kernels read
    meanwhile stays as it is.
    """

    def __init__(self, gpu: Device, rows: HostRows) -> None:
        self._gpu, self._rows = gpu, rows
        self._pieces: list[int] = []
        self.num_bytes = 0
        """Registered so far."""
        self._release = weakref.finalize(self, _release, gpu, rows, self._pieces)
        self._release.atexit = False  # the process's end gives all back, the driver perhaps before

    def ensure(self, num_bytes: int) -> None:
        """Register the first `num_bytes` bytes.

        Raises:
            MemoryError: If the host cannot pin them; what was registered stays so.
        """
        if num_bytes <= self.num_bytes:
            return
        ahead = min(self.num_bytes // _AHEAD_SHARE, _MOST_AHEAD)
        target = -(-max(num_bytes, self.num_bytes + ahead) // _PAGES) * _PAGES
        self._rows.commit(target)
        address = self._rows.address + self.num_bytes
        self._gpu.register(address, target - self.num_bytes)
        self._pieces.append(address)
        self.num_bytes = target

    def release(self) -> None:
        """Give all back, once the GPU has done its work: waits for it."""
        self._release()
        self.num_bytes = 0


def _release(gpu: Device, rows: HostRows, pieces: list[int]) -> None:
    """Unregister `pieces`; takes `rows` to keep their memory until then."""
    if pieces:
        gpu.synchronize()
    for address in pieces:
        gpu.unregister(address)
    pieces.clear()


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
