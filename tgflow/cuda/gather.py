"""Launches the kernels that gather rows by id (csrc/cuda/gather.cu)."""

from __future__ import annotations

import ctypes
from ctypes import c_int64 as _number
from ctypes import c_uint64 as _word

from torch import Tensor

from tgflow.cuda.device import Device

LINE = 128
"""Bytes that one request brings at most. Rows can be read up to the next multiple of it."""
_PIECE = 16
_THREADS = 256
_TOGETHER = 4
_IN_PLACE_SHARE = 4
_DEVICE_BLOCKS = 8


class RowGather(ctypes.Structure):
    """What a gather reads and writes (cuda/row_gather.hpp)."""

    _fields_ = (
        ("rows", _word),
        ("row_bytes", _number),
        ("size", _number),
        ("id", _word),
        ("num_ids", _number),
        ("out", _word),
        ("wrong", _word),
        ("lanes", _number),
    )


def gather(
    gpu: Device,
    rows: int,
    row_bytes: int,
    size: int,
    ids: Tensor,
    out: Tensor,
    wrong: Tensor,
    *,
    in_place: bool,
) -> None:
    """Copy rows to `out` on the GPU's current stream; does not synchronize.

    Args:
        gpu: Where the kernel runs.
        rows: Address of row 0, a multiple of 16, in memory that the GPU reads.
        row_bytes: Of a row, any number.
        size: How many rows there are.
        ids: Contiguous int64 on the GPU, at least one; a negative one gives zeros.
        out: Contiguous, as many rows on the GPU.
        wrong: int64 `[1]` that the host reads without the GPU: becomes an id that is not below
            `size`, whose row is zeros.
        in_place: Whether the rows are in host memory. Few thread blocks keep the bus to it full: a
            grid of a quarter of the multiprocessors leaves the others to training.
    """
    alignment = _alignment(row_bytes | out.data_ptr())
    lanes = lanes_of(row_bytes, alignment)
    work = -(-ids.numel() * lanes // (_THREADS * _TOGETHER))
    processors = gpu.multiprocessors
    most = max(processors // _IN_PLACE_SHARE, 1) if in_place else processors * _DEVICE_BLOCKS
    where = (rows, row_bytes, size, ids.data_ptr(), ids.numel(), out.data_ptr(), wrong.data_ptr())
    name = f"gather_by_{alignment}"
    gpu.kernels.launch(name, min(work, most), _THREADS, RowGather(*where, lanes))


def lanes_of(row_bytes: int, alignment: int) -> int:
    """Return how many lanes share a row: they cover all its lines at once, up to a warp's 32."""
    pieces = -(-(row_bytes + LINE - alignment) // _PIECE)
    return min(max(1 << (pieces - 1).bit_length(), LINE // _PIECE), 32)


def _alignment(address: int) -> int:
    return min(address & -address, _PIECE)
