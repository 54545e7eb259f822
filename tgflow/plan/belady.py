"""Optimal replacement for a cache: what comes next is known, as batches are pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tgflow import _core
from tgflow.cache.script import Script


class BeladyPlanner:
    """Plans what a cache of `num_slots` rows holds, window by window of future batches.

    Belady's replacement with bypass (IBM Systems Journal 5(2), 1966): after each batch the cache
    holds, of what it held and what the batch read, the rows whose next uses are nearest. No plan
    has fewer misses over a window. Ginex (PVLDB 15(11), 2022) does the same for node features, but
    fills the cache anew for every super-batch; here contents carry over. Uses past a window are
    unknown: they count as later than all known ones, and of those the row used last stays.

    Costs O(1) an access and O(num_slots) a window, in one thread without the GIL; memory is in
    proportion to both, whatever the ids. Not to be called from two threads at once.

    Args:
        num_slots: Rows that the cache can hold, at least 0.
        contents: The id in each slot, -1 for none, int64 `[num_slots]`; None: all slots are free.

    Raises:
        ValueError: If an argument has another dtype or shape, or is out of range.
    """

    def __init__(self, num_slots: int, contents: Tensor | None = None) -> None:
        self._native = _core.Belady(num_slots)
        if contents is None:
            return
        if contents.dtype != torch.int64 or contents.shape != (num_slots,):
            raise ValueError(
                f"contents must be int64 [{num_slots}], got {contents.dtype} {list(contents.shape)}"
            )
        self._native.reset(contents.cpu().contiguous().data_ptr())

    def plan(self, batches: Sequence[Tensor]) -> list[Script]:
        """Return what the cache is to do at each batch, and count on its being done.

        Args:
            batches: Per batch the distinct ids that it will gather, int64 `[D]`, on the CPU.

        Raises:
            ValueError: If an id is negative or comes twice in a batch; nothing is planned then.
        """
        sizes = [0, *map(len, batches)]
        offset = torch.tensor(sizes).cumsum(0)
        ids = torch.cat([torch.empty(0, dtype=torch.int64), *batches])
        hit = torch.empty(len(ids), dtype=torch.int32)
        admit = torch.empty_like(hit)
        self._native.plan(
            ids.data_ptr(), offset.data_ptr(), len(batches), hit.data_ptr(), admit.data_ptr()
        )
        return [Script(ids[i:j], hit[i:j], admit[i:j]) for i, j in pairwise(offset.tolist())]

    def contents(self) -> Tensor:
        """Return the id in each slot after all that was planned, -1 for none."""
        ids = torch.empty(len(self._native), dtype=torch.int64)
        self._native.contents(ids.data_ptr())
        return ids
