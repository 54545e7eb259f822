"""Rows that several batches of a super-batch ask for, each as the first of them does.

The hot vertices of NeutronOrch (PVLDB 17, 2024), whose layered orchestration computes their rows
before the super-batch begins, beside the training of the one before. There a sample of the past
says which they will be; here the batches are known, so the counts are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class AskedRows(NamedTuple):
    """Rows that a batch asks for, int64 `[N]` each."""

    nodes: Tensor
    t: Tensor
    """Ticks."""
    position: Tensor
    """See events at log positions below this."""


def recurring_rows(asked: Sequence[AskedRows]) -> AskedRows:
    """Return the rows that two batches or more ask for, each once.

    Args:
        asked: Of one batch or more, each of which asks for a (node, time) at most once.

    Returns:
        The rows, as the first batch asks for them: first those that most batches ask for, and
        among these in order of appearance.
    """
    nodes, t, position = (torch.cat(column) for column in zip(*asked, strict=True))
    ticks, tick = torch.unique(t, return_inverse=True)
    _, row, count = torch.unique(nodes * len(ticks) + tick, return_inverse=True, return_counts=True)
    place = torch.arange(len(nodes))
    first = torch.full_like(count, len(nodes)).scatter_reduce_(0, row, place, "amin")
    first, order = first[count > 1].sort()
    count = count[count > 1][order]
    first = first[count.argsort(descending=True, stable=True)]
    return AskedRows(nodes[first], t[first], position[first])
