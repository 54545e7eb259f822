"""Large questions in parts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tgflow.inference.whole import TooManyNeighbors


def in_parts(size: int, at_once: int, make: Callable[[slice], Tensor]) -> Tensor:
    """Return what `make` makes of all rows, ever fewer at a time where they see too many.

    Args:
        size: How many rows there are; of none, `make` is called once.
        at_once: How many to take at a time, at least 1.
        make: Makes rows of some.

    Raises:
        TooManyNeighbors: If a row by itself sees too many.
    """
    parts: list[Tensor] = []
    start = 0
    while start < size or not parts:
        rows = slice(start, min(start + at_once, size))
        try:
            parts.append(make(rows))
        except TooManyNeighbors:
            if rows.stop - rows.start <= 1:
                raise
            at_once = (rows.stop - rows.start) // 2
            continue
        start = rows.stop
    return parts[0] if len(parts) == 1 else torch.cat(parts)
