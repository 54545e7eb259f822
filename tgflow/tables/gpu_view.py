"""A table as kernels of a GPU read and change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tgflow.cuda.readers import Readers
from tgflow.cuda.rows import TableView, gather, scatter

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

_NONE = -(2**63)


class GpuView:
    """A table as kernels on any stream read it, and as one stream at a time changes it."""

    def __init__(self, gpu: Device, row_bytes: int) -> None:
        self._gpu, self._row_bytes = gpu, row_bytes
        self.readers = Readers(gpu)
        """Who may still read; whoever has the rows lets go of them, and of this, behind those."""
        self._table = TableView(gpu)
        self._wrong = gpu.allocate_host(8).view(torch.int64)
        """A word that kernels write and the host reads: the id of a row that is not there."""
        self._wrong.fill_(_NONE)

    @property
    def address(self) -> int:
        """Of the view in device memory (cuda/table_view.hpp)."""
        return self._table.address

    def check(self) -> None:
        """Raise IndexError if a call that is done by now was asked for a row that is not there."""
        id = int(self._wrong[0])
        if id == _NONE:
            return
        self._wrong.fill_(_NONE)
        raise IndexError(
            f"an earlier call on {self._gpu.device} was asked for id {id}, which was not in "
            "the table; it gave zeros, or wrote nothing"
        )

    def publish(self, rows: int, size: int) -> None:
        """Publish that `size` rows are at address `rows`, after the current stream's writes."""
        self._table.publish(rows, size)
        self.readers.published()

    def gather(self, ids: Tensor, out: Tensor, *, in_place: bool) -> None:
        """Copy rows; all on the GPU, and nobody waits."""
        with self.readers.reading():
            where = (self._gpu, self._table, self._row_bytes)
            gather(*where, ids, out, self._wrong, in_place=in_place)

    def scatter(self, ids: Tensor, rows: Tensor, *, in_place: bool) -> None:
        """Overwrite rows, behind what was launched before on any stream; the host goes on."""
        device = self._gpu.device
        ids, rows = (each.to(device, non_blocking=True).contiguous() for each in (ids, rows))
        self.readers.writing()
        self.readers.wait()
        if len(ids) > 0:
            where = (self._gpu, self._table, self._row_bytes)
            scatter(*where, ids, rows, self._wrong, in_place=in_place)
        self.readers.published()
