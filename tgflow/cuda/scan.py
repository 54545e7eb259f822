"""Prefix sums, which kernels leave to torch."""

from __future__ import annotations

import torch
from torch import Tensor


def prefix_sum(table: Tensor) -> None:
    """Replace each row of `table`, int64 `[R, N]`, by its inclusive prefix sums.

    Row by row: torch scans one row with the whole device, and a table with a thread block a row.
    """
    for row in table:
        torch.cumsum(row, 0, out=row)
