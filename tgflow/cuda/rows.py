"""Launches the kernels that gather and scatter rows by id (csrc/cuda/table.cu)."""

from __future__ import annotations

import ctypes
from ctypes import c_int64 as _number
from ctypes import c_uint64 as _word

from torch import Tensor

from tgflow.cuda.device import Device
from tgflow.cuda.structs import words

LINE = 128
"""Bytes that one request brings at most. Rows can be read up to the next multiple of it."""
_PIECE = 16
_THREADS = 256
_TOGETHER = 4
_IN_PLACE_SHARE = 4
_DEVICE_BLOCKS = 8
_WARP = 32
_VIEW_BYTES = 16


class RowGather(ctypes.Structure):
    """What a gather reads and writes (cuda/table.cu)."""

    _fields_ = words("table row_bytes id num_ids out wrong lanes")


class RowScatter(ctypes.Structure):
    """What a scatter reads and writes (cuda/table.cu)."""

    _fields_ = words("table row_bytes id num_ids source wrong lanes")


class TableView:
    """Where the rows of a table are and how many, in device memory (cuda/table_view.hpp).

    Launches take its address, so that one that is captured sees what the table is when it is
    replayed. `publish` changes it in the order of the current stream.

    Args:
        gpu: Whose kernels read it.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._held = gpu.allocate(_VIEW_BYTES)
        self.address: int = self._held.data_ptr()
        """Of the view, on the device."""
        self.publish(0, 0)

    def publish(self, rows: int, size: int) -> None:
        """Say that `size` rows are at address `rows`, a multiple of 16 that the GPU reads."""
        where = (_word(self.address), _word(rows), _number(size))
        self._gpu.kernels.launch("table_publish", 1, 1, *where)


def gather(
    gpu: Device,
    view: TableView,
    row_bytes: int,
    ids: Tensor,
    out: Tensor,
    wrong: Tensor,
    *,
    in_place: bool,
) -> None:
    """Copy rows to `out` on the GPU's current stream; does not synchronize.

    Args:
        gpu: Where the kernel runs.
        view: The table.
        row_bytes: Of a row, any number.
        ids: Contiguous int64 on the GPU, at least one; a negative one gives zeros.
        out: Contiguous, as many rows on the GPU.
        wrong: int64 `[1]` that the host reads without the GPU: becomes an id that is not in the
            table, whose row is zeros.
        in_place: Whether the rows are in host memory. Few thread blocks keep the bus to it full: a
            grid of a quarter of the multiprocessors leaves the others to training.
    """
    alignment = write_width(row_bytes | out.data_ptr())
    lanes = lanes_of(row_bytes, alignment)
    work = -(-ids.numel() * lanes // (_THREADS * _TOGETHER))
    where = (view.address, row_bytes, ids.data_ptr(), ids.numel(), out.data_ptr(), wrong.data_ptr())
    name = f"gather_by_{alignment}"
    grid = min(work, _most_blocks(gpu, in_place))
    gpu.kernels.launch(name, grid, _THREADS, RowGather(*where, lanes))


def scatter(
    gpu: Device,
    view: TableView,
    row_bytes: int,
    ids: Tensor,
    rows: Tensor,
    wrong: Tensor,
    *,
    in_place: bool,
) -> None:
    """Overwrite rows of a table on the GPU's current stream; does not synchronize.

    Args:
        gpu: Where the kernel runs.
        view: The table.
        row_bytes: Of a row, any number.
        ids: Contiguous int64 on the GPU, at least one. Of an id that comes twice the row becomes
            some of both.
        rows: Contiguous, as many rows on the GPU.
        wrong: As `gather`; the row of such an id, or of a negative one, is left out.
        in_place: As `gather`.
    """
    alignment = write_width(row_bytes | rows.data_ptr())
    lanes = min(1 << (row_bytes // alignment - 1).bit_length(), _WARP)
    work = -(-ids.numel() * lanes // _THREADS)
    where = (view.address, row_bytes, ids.data_ptr(), ids.numel())
    arguments = RowScatter(*where, rows.data_ptr(), wrong.data_ptr(), lanes)
    grid = min(work, _most_blocks(gpu, in_place))
    gpu.kernels.launch(f"scatter_by_{alignment}", grid, _THREADS, arguments)


def lanes_of(row_bytes: int, alignment: int) -> int:
    """Return how many lanes share a row: they cover all its lines at once, up to a warp's 32."""
    pieces = -(-(row_bytes + LINE - alignment) // _PIECE)
    return min(max(1 << (pieces - 1).bit_length(), LINE // _PIECE), _WARP)


def _most_blocks(gpu: Device, in_place: bool) -> int:
    processors = gpu.multiprocessors
    return max(processors // _IN_PLACE_SHARE, 1) if in_place else processors * _DEVICE_BLOCKS


def write_width(address: int) -> int:
    """Return the bytes that a lane writes at once: float32 rows are written by 16 or 4."""
    return next(width for width in (_PIECE, 4, 1) if address % width == 0)
