"""Lists of the slots that read each row, and sums over them: gradients without atomics."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.cuda.arguments import Arguments
from tgflow.cuda.launch import Kernels
from tgflow.cuda.structs import words

THREADS = 256
"""Threads per block, each for `ROWS` lists."""
ROWS = 8
_MOST_BLOCKS = 1 << 20


class RowLists(NamedTuple):
    """Slots by row, in order; those of row r are `slot[start[r] : start[r + 1]]`."""

    start: Tensor
    """int64 `[num_rows + 1]`."""
    slot: Tensor
    """int64 `[S]`: entries after the last start belong to no row."""

    @property
    def num_rows(self) -> int:
        """Number of rows with a list."""
        return len(self.start) - 1

    def struct(self) -> RowListsStruct:
        """Return the lists as a kernel argument."""
        given = Arguments.beside("start", self.start)
        return RowListsStruct(
            given.address("start", self.start, torch.int64, "rows"),
            given.address("slot", self.slot, torch.int64, "S"),
            self.num_rows,
        )


class RowListsStruct(ctypes.Structure):
    """Struct of cuda/row_lists.hpp."""

    _fields_ = words("start slot num_rows")


class _PickedRows(ctypes.Structure):
    """Rows to sum (cuda/rows.cu)."""

    _fields_ = words("rows width out")


def row_lists(row: Tensor, num_rows: int, mask: Tensor | None = None) -> RowLists:
    """Return the slots that read each of `num_rows` rows, fewer than 2^31, on any device.

    A slot whose row is outside of them, or whose mask is False, is in no list. In fixed shapes.
    """
    key = row.flatten()
    if mask is not None:
        key = torch.where(mask.flatten(), key, num_rows)
    ordered, slot = key.clamp(-1, num_rows).to(torch.int32).sort(stable=True)
    rows = torch.arange(num_rows + 1, dtype=torch.int32, device=row.device)
    return RowLists(torch.searchsorted(ordered, rows), slot)


def sum_rows(kernels: Kernels, *, rows: Tensor, lists: RowLists, out: Tensor) -> None:
    """Fill `out[r]` with the sum of `rows[s]` over the slots s of row r, in their order."""
    given = Arguments.beside("rows", rows)
    address = given.address("rows", rows, torch.float32, "S", "D")
    size, width = rows.shape
    if len(lists.slot) != size:
        raise ValueError(f"lists must be of {size} slots, got {len(lists.slot)}")
    to = given.address("out", out, torch.float32, lists.num_rows, width)
    struct = lists.struct()
    name = f"sum_rows_by_{lanes_width([width], [address, to])}"
    if out.numel() > 0:
        picked = _PickedRows(address, width, to)
        kernels.launch(name, list_blocks(lists), THREADS, picked, struct)


def list_blocks(lists: RowLists) -> int:
    """Return the number of thread blocks for the lists, at least 1."""
    return max(min(-(-lists.num_rows // ROWS), _MOST_BLOCKS), 1)


def lanes_width(widths: list[int], addresses: list[int]) -> int:
    """Return the numbers that a lane reads at once: 4 where widths and addresses allow it."""
    is_wide = all(w % 4 == 0 for w in widths) and all(a % 16 == 0 for a in addresses)
    return 4 if is_wide else 1
