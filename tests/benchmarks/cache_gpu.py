"""A gather through a cache in a GPU's memory, beside one from host memory without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.race import take_turns
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options
from tgflow.cache import CachedTable, cached
from tgflow.tables import FeatureTable

if TYPE_CHECKING:
    from tgflow.cuda.device import Device

IDS = 12_000
HIT_RATE = 0.9

CALL = 60_000
SMALL_CALL = 4_000
"""Rows of a gather for a small batch, which reading in place brings in tens of microseconds."""
TABLE_BYTES = 2 << 30
DIM = 172
CACHED = 1_000_000
"""Rows that the cache holds; a tenth of that in a look."""
TIMES_THREE = 3.0


def device_rows(gpu: Device, options: Options) -> Iterator[Row]:
    """Gathers of few rows and of many through a cache, beside the same without one."""
    num_bytes = TABLE_BYTES >> (10 if options.quick else 0)
    table = FeatureTable(DIM, placement="uva", device=gpu)
    part = torch.rand(min(num_bytes, 1 << 28) // (4 * DIM), DIM)
    while len(table) * DIM * 4 < num_bytes:
        table.append(part)
    for call in (SMALL_CALL, CALL):
        options.say(f"cache: {call:,} rows through a cache on {gpu.device}")
        yield from cached_rows(table, gpu, options, call)
    table.close()


def cached_rows(table: FeatureTable, gpu: Device, options: Options, call: int) -> Iterator[Row]:
    """Rows of `table`, in pinned memory, nine in ten of them cached; every call has ids of its own.

    What the CPU gathers beside it goes to a pinned buffer, and from there to the GPU.
    """
    device, size = gpu.device, len(table)
    cache = cached(table, rows=min(CACHED, size // 10), device=gpu)
    calls = 3 if options.quick else 20
    hot, ids = ids_of_calls(2 * calls, cache.capacity, size, call)
    there = [each.to(device) for each in ids]
    fill(cache, hot.to(device))
    out = torch.empty(call, table.dim, device=device)
    staging = torch.empty(call, table.dim, pin_memory=out.is_cuda)

    def uncached(i: int) -> Tensor:
        table.gather(ids[i], staging)
        return out.copy_(staging, non_blocking=True)

    check_alike(cache, there[0], table.gather(ids[0]))
    for each in there[calls:]:  # contents as they are after a while
        cache.gather(each, out)
    cache.reset_counters()
    methods = {
        "cached": lambda i: cache.gather(there[i], out),
        "uva": lambda i: table.gather(there[i], out),
        "host": uncached,
    }
    seconds = take_turns(methods, calls, 1, device.type)
    speeds = {name: call / float(each.median()) for name, each in seconds.items()}
    params: Params = {
        "dim": table.dim,
        "ids": call,
        "rows": cache.capacity,
        "table rows": size,
        "hit rate": round(cache.counters.hit_rate, 3),
    }
    name = "gather through a cache on the GPU"
    yield Row(name, speeds["cached"], "rows/s", params, None, speeds["host"], TIMES_THREE)
    name = "gather through a cache, over plain uva"
    yield Row(name, speeds["cached"], "rows/s", params, None, speeds["uva"], 1.0)


def check_alike(cache: CachedTable, ids: Tensor, expected: Tensor) -> None:
    """Raise RuntimeError unless the cache gives the table's rows."""
    if not torch.equal(cache.gather(ids).cpu(), expected):
        raise RuntimeError("the cache gives other rows than its table")


def fill(cache: CachedTable, hot: Tensor) -> None:
    """Let a cache be full, with all hot rows among what it holds."""
    cache.preload(torch.arange(cache.capacity, device=hot.device))
    cache.preload(hot)


def ids_of_calls(
    num: int, capacity: int, size: int, num_ids: int = IDS
) -> tuple[Tensor, list[Tensor]]:
    """Return a hot set that fits the cache, scattered over the table, and the ids of each call.

    These are distinct hot ones, and cold ones that are seldom equal, shuffled. Cold rows push hot
    ones out that are not used again soon enough: the hot set is half of the cache, so that
    `HIT_RATE` of all is found.
    """
    generator = torch.Generator().manual_seed(0)
    num_hot = round(num_ids * HIT_RATE)
    hot = torch.randperm(size, generator=generator)[: max(capacity // 2, num_hot)]
    calls = []
    for _ in range(num):
        chosen = hot[torch.randperm(len(hot), generator=generator)[:num_hot]]
        cold = torch.randint(size, (num_ids - num_hot,), generator=generator)
        both = torch.cat([chosen, cold])
        calls.append(both[torch.randperm(num_ids, generator=generator)])
    return hot, calls
