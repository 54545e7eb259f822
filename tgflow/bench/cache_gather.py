"""A gather through a cache beside one from the table itself, whose rows lie far apart."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tgflow import _core
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.bench.turns import take_turns
from tgflow.cache import cached
from tgflow.tables import FeatureTable

IDS = 12_000
HIT_RATE = 0.9
TABLE_BYTES = 1 << 30
QUICK_BYTES = 256 << 20
WIDTHS = (100, 172)
CAPACITIES = (16_000, 100_000)


def gather_rows(options: Options) -> Iterator[Row]:
    """12,000 distinct ids, nine in ten of them cached, from a table of 1 GB."""
    threads = _core.num_threads()
    try:
        for num_threads in sorted({1, threads}):
            _core.set_num_threads(num_threads)
            for dim in WIDTHS:
                for capacity in CAPACITIES:
                    yield gather_row(dim, capacity, num_threads, options)
    finally:
        _core.set_num_threads(threads)


def gather_row(dim: int, capacity: int, num_threads: int, options: Options) -> Row:
    """Time both in turns; every call has ids of its own."""
    num_bytes = QUICK_BYTES if options.quick else TABLE_BYTES
    table = filled(num_bytes // (4 * dim), dim)
    cache = cached(table, rows=capacity)
    calls = ids_of_calls(5 if options.quick else 60, capacity, len(table))
    cache.preload(torch.arange(capacity))
    out = torch.empty(IDS, dim)
    calls_by_name = {
        "cached": lambda i: cache.gather(calls[i], out),
        "table": lambda i: table.gather(calls[i], out),
    }
    take_turns(calls_by_name, 2)
    cache.reset_counters()
    seconds = take_turns(calls_by_name, len(calls))
    median = {name: float(each.median()) for name, each in seconds.items()}
    params: Params = {
        "x_dim": dim,
        "rows": capacity,
        "table rows": len(table),
        "threads": num_threads,
        "hit rate": round(cache.counters.hit_rate, 3),
    }
    speeds = {name: IDS / each for name, each in median.items()}
    name = "cached gather, beside the table's"
    return Row(name, speeds["cached"], "rows/s", params, None, speeds["table"], 1.0)


def filled(size: int, dim: int) -> FeatureTable:
    """Return a table whose pages are all there."""
    table = FeatureTable(dim)
    step = 1 << 16
    for start in range(0, size, step):
        table.append(torch.ones(min(step, size - start), dim))
    return table


def ids_of_calls(num: int, capacity: int, size: int, num_ids: int = IDS) -> list[Tensor]:
    """Return distinct ids a call: of a hot set that fits the cache, and cold ones.

    Cold rows push hot ones out that are not used again soon enough: the hot set is half of the
    cache, so that `HIT_RATE` of all is found.
    """
    generator = torch.Generator().manual_seed(0)
    num_hot = round(num_ids * HIT_RATE)
    hot_set = max(capacity // 2, num_hot)
    calls = []
    for _ in range(num):
        hot = torch.randperm(hot_set, generator=generator)[:num_hot]
        cold = torch.randint(hot_set, size, (num_ids - num_hot,), generator=generator)
        both = torch.cat([hot, cold])
        calls.append(both[torch.randperm(num_ids, generator=generator)])
    return calls
