"""The room's only door to the core: tensors in and out, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow import _core


class RowMemo:
    """Rows by (layer, node, time, position), in a budget of bytes; see `csrc/.../row_memo.hpp`.

    Args:
        dim: Width of a row of float32.
        budget: Bytes that all of it may take.

    Raises:
        ValueError: If there is no room for a row.
    """

    def __init__(self, dim: int, budget: int) -> None:
        self._native = _core.RowMemo(dim, budget)
        self._dim = dim

    def __len__(self) -> int:
        return len(self._native)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, however many rows there are."""
        return self._native.bytes

    def find(
        self, stamp: int, layer: int, nodes: Tensor, t: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the rows, float32 `[N, dim]`, and which of them are not there, int64 `[M]`."""
        out, missing = torch.empty(len(nodes), self._dim), torch.empty_like(nodes)
        size = self._native.find(stamp, layer, nodes, t, position, out, missing)
        return out, missing[:size]

    def add(
        self, stamp: int, layer: int, nodes: Tensor, t: Tensor, position: Tensor, rows: Tensor
    ) -> None:
        """Add rows, float32 `[N, dim]`, as they are of; int64 `[N]` each."""
        self._native.add(stamp, layer, nodes, t, position, rows.contiguous())
