"""The canonical sum of all slices at once, as `TreeSum` adds them one by one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tgflow.base.tree_sum import TreeSum


def tree_sum(values: Sequence[Tensor]) -> Tensor:
    """Return the sum of the slices' `values`, of one shape; they may be overwritten."""
    tree = TreeSum(len(values))
    for number, each in enumerate(values):
        tree.add(range(number, number + 1), each)
    return tree.total()
