"""What a cache is to do for one batch, by a planner that knows the future."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tgflow.cache._native import ScheduleMismatch

__all__ = ["CacheSchedule", "ScheduleMismatch"]


@dataclass(frozen=True, slots=True, eq=False)
class CacheSchedule:
    """One batch's moves, to be applied in the order in which they were planned.

    Args:
        ids: The distinct ids that the batch gathers, without -1, in order of first appearance,
            int64 `[D]`, on the CPU.
        hit: The slot in which each is found, int32 `[D]`; -1: not cached, read from the table.
        admit: The slot into which each that was read is put afterwards, int32 `[D]`; -1: none. It
            may hold another row, even one that this batch found there: hits are read first.
    """

    ids: Tensor
    hit: Tensor
    admit: Tensor

    def __len__(self) -> int:
        return len(self.ids)
