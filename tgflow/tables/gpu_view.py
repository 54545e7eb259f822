"""What a GPU's kernels have of a table: where its rows are now, and a word for wrong ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from tgflow.cuda.readers import Readers
from tgflow.cuda.rows import TableView, gather, scatter
from tgflow.tables.out_of_range import OutOfRangeFlag

if TYPE_CHECKING:
    from tgflow.cuda.device import Device


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
