"""Rows that continue elsewhere where a placement has no more room for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from torch import Tensor

from tgflow.tables.pending_gather import RowRequest
from tgflow.tables.protocols import RowStorage

if TYPE_CHECKING:
    from tgflow.cuda.device import Device
    from tgflow.tables.gpu_view import GpuView

_MOVED_AT_ONCE = 64 << 20


class AutoRows:
    """Rows in the first of some placements; all of them move to the next when it is full.

    Args:
        placements: Open a placement each, the fastest first, with the bytes that rows may take
            there; at least one.
        gpu: Whose kernels gather, if any.
    """

    def __init__(
        self, placements: list[tuple[Callable[[], RowStorage], int]], gpu: Device | None
    ) -> None:
        (first, self._room), *self._further = placements
        self._rows = first()
        self._gpu = gpu
        self._launching = threading.Lock()
        self._captured: GpuView | None = None  # by gathers, which read it to their end
        self.row_bytes = self._rows.row_bytes

    @property
    def placement(self) -> str:
        """Where the rows are now."""
        return self._rows.placement

    @property
    def current(self) -> RowStorage:
        """What has the rows now; when they move on, it still has those that were there before."""
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._rows.nbytes

    def append(self, rows: Tensor, size: int) -> None:
        """Put rows behind the first `size`, here or in the next placement that has room."""
        while (size + len(rows)) * self.row_bytes > self._room:
            if not self._move(size):
                break
        try:
            self._rows.append(rows, size)
        except MemoryError:
            if not self._move(size):
                raise
            self.append(rows, size)

    def _move(self, size: int) -> bool:
        """Move all rows to the next placement, if there is one: readers continue in the old one.

        Where that fails they stay, and the next append tries again.
        """
        if not self._further:
            return False
        placement, room = self._further[0]
        try:
            target = self._copied(placement, size)
        except MemoryError:
            if len(self._further) == 1:
                raise
            self._further.pop(0)
            return self._move(size)
        self._further.pop(0)
        with self._launching:
            self._captured = self._rows.view or self._captured
            _hand_over(self._rows, target, size)
            self._rows, old = target, self._rows
        if self._gpu is not None:
            self._gpu.synchronize()  # kernels that read the old rows are done
        del old
        self._room = room
        return True

    @property
    def view(self) -> GpuView | None:
        """What kernels read; None where they cannot."""
        return self._rows.view

    def _copied(self, placement: Callable[[], RowStorage], size: int) -> RowStorage:
        """Return an opened placement with all rows; one that cannot take them is left empty."""
        target, step = placement(), max(1, _MOVED_AT_ONCE // self.row_bytes)
        if target.num_rows:
            raise FileExistsError(
                "the file for rows that have no room in memory was not there when the table was "
                f"made, and now has {target.num_rows} of somebody else's; remove it"
            )
        try:
            for start in range(0, size, step):
                target.append(self._rows.read(start, min(start + step, size)), start)
        except BaseException:
            with suppress(OSError):
                target.truncate(0)
                target.close()
            raise
        return target

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite some rows."""
        self._rows.write(ids, rows)

    def gather(self, ids: Tensor, out: Tensor, size: int) -> None:
        """Copy rows."""
        if self._gpu is None or ids.device != self._gpu.device:
            self._rows.gather(ids, out, size)
            return
        with self._launching:
            self._rows.gather(ids, out, size)

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows."""
        return self._rows.read(start, stop)

    def truncate(self, size: int) -> None:
        """Forget the rows from `size` on."""
        self._rows.truncate(size)

    def sync(self) -> None:
        """Make what was appended as safe as the placement can."""
        self._rows.sync()

    @property
    def num_rows(self) -> int:
        """Rows that the current placement was opened with or has since; 0 of memory."""
        return self._rows.num_rows

    def start(self, ids: Tensor, out: Tensor, size: int) -> RowRequest | None:
        """Begin to gather where the rows are now."""
        return self._rows.start(ids, out, size)

    def close(self) -> None:
        """Give all back."""
        self._rows.close()


def _hand_over(old: RowStorage, new: RowStorage, size: int) -> None:
    """Let captured gathers find the rows in their new place; none where no kernel can read them."""
    from tgflow.tables.uva import UvaRows

    if old.view is None:
        return
    if isinstance(new, UvaRows) and new.view is not None:
        new.adopt(old.view, size)
        return
    old.view.readers.writing()
    old.view.publish(0, 0)
