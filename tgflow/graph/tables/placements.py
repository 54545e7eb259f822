"""Opens placements of tables, and moves rows to the next placement when one is full."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from tgflow.base.units import INT64_MAX, parse_bytes
from tgflow.graph.tables import _native
from tgflow.graph.tables.disk import DEFAULT_BUDGET, DiskRows
from tgflow.graph.tables.host import HostRows, memory_limit
from tgflow.graph.tables.table import RowStorage

if TYPE_CHECKING:
    from tgflow.cuda.device import Device
    from tgflow.cuda.rows import TableView

_MOVED_AT_ONCE = 64 << 20


class AutoRows(RowStorage):
    """Rows in the first of several placements; all move to the next when it is full."""

    def __init__(
        self, placements: list[tuple[Callable[[], RowStorage], int]], gpu: Device | None
    ) -> None:
        (first, self._room), *self._further = placements
        self._rows, self._first = first(), 0
        self._gpu = gpu
        self._launching = threading.Lock()
        self._captured: TableView | None = None  # of captured gathers, until they end
        self.row_bytes = self._rows.row_bytes

    @property
    def placement(self) -> str:  # type: ignore[override]
        """Current placement of the rows."""
        return self._rows.placement

    @property
    def current(self) -> RowStorage:
        """Current storage of the rows; after a move it still has those from before."""
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._rows.nbytes

    def append(self, rows: Tensor, size: int) -> None:
        """Append rows behind the first `size`, here or in the next placement that has room."""
        while (size + len(rows) - self._first) * self.row_bytes > self._room:
            if not self._move(size):
                break
        try:
            self._rows.append(rows, size)
        except MemoryError:
            if not self._move(size):
                raise
            self.append(rows, size)

    def _move(self, size: int) -> bool:
        """Move all rows to the next placement, if any; readers continue in the old one."""
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
    def view(self) -> TableView | None:
        """View for kernels; None where kernels cannot read the rows."""
        return self._rows.view

    def _copied(self, placement: Callable[[], RowStorage], size: int) -> RowStorage:
        """Return an opened placement with all rows; one that has no room is left empty."""
        target, step = placement(), max(1, _MOVED_AT_ONCE // self.row_bytes)
        if target.num_rows:
            raise FileExistsError(
                "the file for rows that have no room in memory was not there when the table was "
                f"made, and now has {target.num_rows} that are not this table's; remove it"
            )
        try:
            target.forget(first := min(self._first, size))
            for start in range(first, size, step):
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
        """Remove the rows from `size` on."""
        self._rows.truncate(size)

    def forget(self, first: int) -> None:
        """Free the rows before `first`, here and in later placements."""
        self._first = max(self._first, first)
        self._rows.forget(first)

    def sync(self) -> None:
        """Make appended rows as durable as the placement can."""
        self._rows.sync()

    @property
    def num_rows(self) -> int:
        """Rows in the file of the current placement; 0 in memory."""
        return self._rows.num_rows

    def start(self, ids: Tensor, out: Tensor, size: int) -> _native.RowRequest | None:
        """Start a gather in the current placement."""
        return self._rows.start(ids, out, size)

    def close(self) -> None:
        """Release everything."""
        self._rows.close()


def _hand_over(old: RowStorage, new: RowStorage, size: int) -> None:
    """Point captured gathers to the new place of the rows; to none if no kernel can read them."""
    from tgflow.graph.tables.gpu_rows import UvaRows

    if old.view is None:
        return
    if isinstance(new, UvaRows) and new.view is not None:
        new.adopt(old.view, size)
        return
    old.view.readers.writing()
    old.view.publish(0, 0)


Placement: TypeAlias = Literal["auto", "device", "uva", "host", "disk"]

PLACEMENTS: tuple[Placement, ...] = get_args(Placement)

_PINNED_PART = 2
"""Placement "auto" pins at most the host's memory divided by this."""


def open_storage(
    placement: Placement,
    row_bytes: int,
    kind: str,
    *,
    device: str | torch.device | Device | None,
    budget: int | str | None,
    path: str | Path | None,
) -> RowStorage:
    """Return a placement, empty but for an existing file; `kind` describes the rows in words."""
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, got {placement!r}")
    if placement not in ("auto", "disk") and (budget is not None or path is not None):
        raise ValueError(
            f'budget and path are for placement "auto" or "disk", got one for {placement!r}'
        )
    num_bytes = INT64_MAX if budget is None else parse_bytes(budget)

    def on_disk() -> RowStorage:
        file = None if path is None else Path(path)
        return DiskRows(row_bytes, kind, file, min(num_bytes, DEFAULT_BUDGET))

    if placement == "disk" or (path is not None and Path(path).exists()):
        return on_disk()
    if placement == "host":
        return HostRows(row_bytes)
    gpu = _gpu("cuda" if device is None and placement != "auto" else device)
    if gpu is None and placement != "auto":
        raise ValueError(f"placement {placement!r} needs a GPU as its device, got {str(device)!r}")
    if gpu is None:
        return AutoRows([(partial(HostRows, row_bytes), num_bytes), (on_disk, INT64_MAX)], None)
    from tgflow.graph.tables.gpu_rows import DeviceRows, UvaRows

    on_gpu = partial(DeviceRows, row_bytes, gpu, None if budget is None else num_bytes)
    pinned = partial(UvaRows, row_bytes, gpu)
    if placement == "device":
        return on_gpu()
    if placement == "uva":
        return pinned()
    places: list[tuple[Callable[[], RowStorage], int]] = [
        (on_gpu, num_bytes),
        (pinned, memory_limit() // _PINNED_PART),
        (on_disk, INT64_MAX),
    ]
    return AutoRows(places, gpu)


def _gpu(device: str | torch.device | Device | None) -> Device | None:
    from tgflow.cuda.device import device_of

    if device is None or (isinstance(device, str | torch.device) and str(device) == "cpu"):
        return None
    if isinstance(device, str | torch.device):
        return device_of(torch.device(device))
    return device
