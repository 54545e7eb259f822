"""A gather through a cache in a GPU's memory, beside one from host memory without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.cache_gather import fill, ids_of_calls
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.bench.turns import take_turns
from tgflow.cache import CachedTable, cached
from tgflow.tables import FeatureTable

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

CALL = 60_000
CACHED = 1_000_000
"""Rows that the cache holds; a tenth of that in a look."""
TIMES_THREE = 3.0


def cached_rows(table: FeatureTable, gpu: Device, options: Options) -> Iterator[Row]:
    """Rows of `table`, in pinned memory, nine in ten of them cached; every call has ids of its own.

    What the CPU gathers beside it goes to a pinned buffer, and from there to the GPU.
    """
    device, size = gpu.device, len(table)
    cache = cached(table, rows=min(CACHED, size // 10), device=gpu)
    calls = 3 if options.quick else 20
    hot, ids = ids_of_calls(2 * calls, cache.capacity, size, CALL)
    there = [each.to(device) for each in ids]
    fill(cache, hot.to(device))
    out = torch.empty(CALL, table.dim, device=device)
    staging = torch.empty(CALL, table.dim, pin_memory=out.is_cuda)

    def uncached(i: int) -> Tensor:
        table.gather(ids[i], staging)
        return out.copy_(staging, non_blocking=True)

    check_alike(cache, there[0], table.gather(ids[0]))
    for each in there[calls:]:  # contents as they are after a while
        cache.gather(each, out)
    cache.reset_counters()
    methods = {"cached": lambda i: cache.gather(there[i], out), "host": uncached}
    seconds = take_turns(methods, calls, 1, device.type)
    speeds = {name: CALL / float(each.median()) for name, each in seconds.items()}
    params: Params = {
        "dim": table.dim,
        "ids": CALL,
        "rows": cache.capacity,
        "table rows": size,
        "hit rate": round(cache.counters.hit_rate, 3),
    }
    name = "gather through a cache on the GPU"
    yield Row(name, speeds["cached"], "rows/s", params, None, speeds["host"], TIMES_THREE)


def check_alike(cache: CachedTable, ids: Tensor, expected: Tensor) -> None:
    """Raise RuntimeError unless the cache gives the table's rows."""
    if not torch.equal(cache.gather(ids).cpu(), expected):
        raise RuntimeError("the cache gives other rows than its table")
