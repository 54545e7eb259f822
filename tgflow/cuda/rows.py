"""Views of tables that kernels read and write by id (csrc/cuda/table.cu)."""

from __future__ import annotations

import ctypes
from ctypes import c_int64 as _number
from ctypes import c_uint64 as _word

import torch
from torch import Tensor

from tgflow.cuda.device import Device
from tgflow.cuda.readers import Readers
from tgflow.cuda.structs import words

LINE = 128
"""Bytes of a cache line. Rows may be read up to the next multiple of it."""
_PIECE = 16
_THREADS = 256
_TOGETHER = 4
_IN_PLACE_SHARE = 4
_DEVICE_BLOCKS = 8
_WARP = 32
_VIEW_BYTES = 16
_NONE = -(2**63)


class RowCopy(ctypes.Structure):
    """Arguments of a gather, or of a scatter (cuda/table.cu)."""

    _fields_ = words("table row_bytes id num_ids rows wrong lanes")


class TableView:
    """A table for kernels: read on any stream, changed on one stream at a time.

    The rows' address and number are in device memory (cuda/table_view.hpp), which launches read: a
    captured launch sees the table as it is at replay.
    """

    def __init__(self, gpu: Device, row_bytes: int) -> None:
        self._gpu, self._row_bytes = gpu, row_bytes
        self.readers = Readers(gpu)
        """Readers; memory of rows, and this view, is released after them."""
        self._held = gpu.allocate(_VIEW_BYTES)
        self.address: int = self._held.data_ptr()
        """Address of the view on the device."""
        self._wrong = gpu.allocate_host(8).view(torch.int64)
        """A word that kernels write and the host reads: a requested id that is out of range."""
        self._wrong.fill_(_NONE)
        self.publish(0, 0)

    def check(self) -> None:
        """Raise IndexError if a finished call was given an id that is out of range."""
        id = int(self._wrong[0])
        if id == _NONE:
            return
        self._wrong.fill_(_NONE)
        raise IndexError(
            f"an earlier call on {self._gpu.device} was asked for id {id}, which was not in "
            "the table; it gave zeros, or wrote nothing"
        )

    def publish(self, rows: int, size: int) -> None:
        """Publish `size` rows at address `rows`, ordered after the current stream's writes.

        The address must be a multiple of 16 and readable by the GPU.
        """
        where = (_word(self.address), _word(rows), _number(size))
        self._gpu.kernels.launch("table_publish", 1, 1, *where)
        self.readers.published()

    def gather(self, ids: Tensor, out: Tensor, *, in_place: bool) -> None:
        """Copy the rows of one or more ids to `out`, zeros for a negative id, on this stream.

        `in_place` rows are in host memory. A few thread blocks saturate the bus: a grid of a
        quarter of the multiprocessors leaves the others to training. Does not synchronize.
        """
        alignment = write_width(self._row_bytes | out.data_ptr())
        lanes = lanes_of(self._row_bytes, alignment)
        work = -(-ids.numel() * lanes // (_THREADS * _TOGETHER))
        arguments = RowCopy(*self._where(ids), out.data_ptr(), self._wrong.data_ptr(), lanes)
        with self.readers.reading():
            self._launch(f"gather_by_{alignment}", work, in_place, arguments)

    def scatter(self, ids: Tensor, rows: Tensor, *, in_place: bool) -> None:
        """Overwrite rows, ordered after earlier launches on any stream; does not synchronize.

        A duplicate id leaves a mix of its rows; an id that is out of range is skipped.
        """
        device = self._gpu.device
        ids, rows = (each.to(device, non_blocking=True).contiguous() for each in (ids, rows))
        alignment = write_width(self._row_bytes | rows.data_ptr())
        lanes = min(1 << (self._row_bytes // alignment - 1).bit_length(), _WARP)
        arguments = RowCopy(*self._where(ids), rows.data_ptr(), self._wrong.data_ptr(), lanes)
        self.readers.writing()
        self.readers.wait()
        if len(ids) > 0:
            work = -(-len(ids) * lanes // _THREADS)
            self._launch(f"scatter_by_{alignment}", work, in_place, arguments)
        self.readers.published()

    def _where(self, ids: Tensor) -> tuple[int, int, int, int]:
        return self.address, self._row_bytes, ids.data_ptr(), ids.numel()

    def _launch(self, name: str, work: int, in_place: bool, arguments: RowCopy) -> None:
        processors = self._gpu.multiprocessors
        most = max(processors // _IN_PLACE_SHARE, 1) if in_place else processors * _DEVICE_BLOCKS
        self._gpu.kernels.launch(name, min(work, most), _THREADS, arguments)


def lanes_of(row_bytes: int, alignment: int) -> int:
    """Return the lanes per row: they cover all its lines at once, up to a warp's 32."""
    pieces = -(-(row_bytes + LINE - alignment) // _PIECE)
    return min(max(1 << (pieces - 1).bit_length(), LINE // _PIECE), _WARP)


def write_width(address: int) -> int:
    """Return the bytes that a lane writes at once: 16 or 4, for float32 rows."""
    return next(width for width in (_PIECE, 4, 1) if address % width == 0)
