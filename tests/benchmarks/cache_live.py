"""A live stream: rows are asked for soon after they came, and nobody can plan for it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tgflow.bench.cache_trace import BATCH_SIZE, Trace
from tgflow.bench.row import Params, Row
from tgflow.cache import CachedTable, cached
from tgflow.tables import FeatureTable

SHARES = (0.005, 0.1)
WIDTHS = (100, 172)


def live_rows(name: str, trace: Trace) -> Iterator[Row]:
    """Hit rates if appended rows are written through to the cache, beside those if they are not."""
    for share in SHARES:
        capacity = max(round(share * trace.num_rows), 1)
        through = follow(trace, capacity, writes_through=True).counters
        beside = follow(trace, capacity, writes_through=False).counters
        params: Params = {
            "stream": name,
            "share": share,
            "rows": capacity,
            "policy": "lru",
            "rows read": through.misses,
            "otherwise": beside.misses,
        }
        for dim in WIDTHS:
            read = (beside.misses - through.misses) * 4 * dim
            params[f"GB spared at {dim}"] = round(read / 1e9, 3)
        yield Row(
            "live, written through",
            through.hit_rate,
            "hit rate",
            params,
            None,
            beside.hit_rate,
            1.0,
        )


def follow(trace: Trace, capacity: int, *, writes_through: bool) -> CachedTable:
    """Gather what each batch asks for, then append its own rows, as a run does that learns live.

    The rows of its own that a batch asks for are at hand, and no cache is asked.
    """
    table = FeatureTable(1, torch.uint8)
    cache = cached(table, rows=capacity)
    for number, ids in enumerate(trace.batches):
        cache.gather(ids[ids < len(table)])
        num = min(BATCH_SIZE, trace.num_rows - number * BATCH_SIZE)
        (cache if writes_through else table).append(torch.zeros(num, 1, dtype=torch.uint8))
    return cache
