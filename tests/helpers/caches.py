"""Generated tables and caches, and operations on them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from helpers.cache_reference import ReferenceCache, distinct
from helpers.devices import opened, place_of
from tgflow.graph.cache import CachedTable, CacheSchedule, cached
from tgflow.graph.cache.contents import POLICIES, Policy
from tgflow.graph.tables import FeatureTable

SIZE = 12
"""Rows of generated tables: few, so that every case occurs often."""

capacities = st.sampled_from((0, 1, 2, 3, 5, 8, SIZE, 40))
policies = st.sampled_from(POLICIES)


def made_rows(size: int, dim: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    """Distinct rows."""
    return (torch.arange(size * dim) + 1).to(dtype).reshape(size, dim)


class FarTable(FeatureTable):
    """A table that cannot be read in place: its cache must request rows."""

    fails = False

    @property
    def placement(self) -> str:
        return "far"

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        if self.fails:
            raise OSError("the disk is gone")
        return super().gather(ids, out)


def made_table(rows: Tensor, *, far: bool = False, device=None) -> FeatureTable:
    """A table in host memory or readable in place by `device`; far: not readable in place."""
    if far or device is None:
        table = (FarTable if far else FeatureTable)(rows.shape[1], rows.dtype)
    else:
        table = FeatureTable(rows.shape[1], rows.dtype, "uva", device=device)
    table.append(rows)
    return table


def made_cache(
    capacity: int,
    policy: Policy | None = None,
    device: str = "cpu",
    *,
    far: bool = False,
    size: int = SIZE,
    dim: int = 3,
) -> CachedTable:
    where = None if device == "cpu" else opened(device)
    table = made_table(made_rows(size, dim), far=far, device=where)
    return cached(table, rows=capacity, policy=policy, device=where)


def int64(values: list[int], device: str = "cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=place_of(device))


def check(cache: CachedTable, reference: ReferenceCache) -> None:
    """Assert that contents and counters match the reference."""
    assert cache.contents().tolist() == reference.contents()
    counters = cache.counters
    counters.row_bytes = 0
    assert counters == reference.counters


def any_schedule(reference: ReferenceCache, ids: list[int], choice: list[int]) -> CacheSchedule:
    """A schedule valid for the contents: `choice` selects the slots of misses."""
    wanted = distinct(ids)
    hit = [-1 if (slot := reference.slot_of(row)) is None else slot for row in wanted]
    admit, taken = [], set()
    for rank, slot in enumerate(hit):
        target = choice[rank % len(choice)] if choice else -1
        goes = slot < 0 and 0 <= target < reference.capacity and target not in taken
        admit.append(target if goes else -1)
        taken.add(target)
    return CacheSchedule(*(torch.tensor(part, dtype=torch.int64) for part in (wanted, hit, admit)))
