"""A gather through a cache beside those from the table itself, whose rows lie far apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from tgflow import _core
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.bench.turns import restored_threads, take_turns
from tgflow.cache import CachedTable, cached
from tgflow.cache.policy import Policy
from tgflow.tables import FeatureTable

IDS = 12_000
A_TURN = 8
"""Calls a turn: what others leave in the processor's caches counts for one of them at most."""
HIT_RATE = 0.9
TABLE_BYTES = (1 << 30, 4 << 30)
QUICK_BYTES = (256 << 20,)
WIDTHS = (100, 172)
CAPACITIES = (16_000, 100_000)
POLICIES: tuple[Policy, ...] = ("lru", "static")
"""Whether misses come in, as in a stream, or nothing does: the price of looking up alone."""


def gather_rows(options: Options) -> Iterator[Row]:
    """12,000 distinct ids, nine in ten of them cached, from tables of 1 and 4 GiB."""
    for num_bytes in QUICK_BYTES if options.quick else TABLE_BYTES:
        for dim in WIDTHS:
            table = filled(num_bytes // (4 * dim), dim)
            for capacity in CAPACITIES:
                for policy in POLICIES:
                    yield from cached_rows(table, capacity, policy, options)
            table.close()


def cached_rows(
    table: FeatureTable, capacity: int, policy: Policy, options: Options
) -> Iterator[Row]:
    """Time a cache in front of a table on one thread and on all."""
    num_cores = _core.num_threads()
    for num_threads in sorted({1, num_cores}):
        with restored_threads():
            _core.set_num_threads(num_threads)
            torch.set_num_threads(num_threads)
            yield from timed_rows(table, capacity, policy, options)


def timed_rows(
    table: FeatureTable, capacity: int, policy: Policy, options: Options
) -> Iterator[Row]:
    """Time all methods in turns; every call has ids of its own."""
    num_calls = A_TURN * (3 if options.quick else 12)
    hot, calls = ids_of_calls(2 * num_calls, capacity, len(table))
    cache = cached(table, rows=capacity, policy=policy)
    fill(cache, hot)
    for ids in calls[num_calls:]:  # contents as they are after a while
        cache.gather(ids)
    cache.reset_counters()
    speed = speeds(cache, table, calls[:num_calls])
    params: Params = {
        "x_dim": table.dim,
        "rows": capacity,
        "policy": policy,
        "table GiB": round(len(table) * table.dim * 4 / 2**30, 2),
        "threads": _core.num_threads(),
        "hit rate": round(cache.counters.hit_rate, 3),
    }
    for other, goal in (("table.gather", 1.0), ("index_select(out=)", 1.0), ("x[idx]", None)):
        yield Row(
            "cached gather",
            speed["cached"],
            "rows/s",
            params | {"beside": other},
            None,
            speed[other],
            goal,
        )


def speeds(cache: CachedTable, table: FeatureTable, calls: list[Tensor]) -> dict[str, float]:
    """Return rows a second of each method, by the median turn."""
    out, x = torch.empty(IDS, table.dim), table.read(0, len(table))
    methods: dict[str, Callable[[Tensor], object]] = {
        "cached": lambda ids: cache.gather(ids, out),
        "table.gather": lambda ids: table.gather(ids, out),
        "index_select(out=)": lambda ids: torch.index_select(x, 0, ids, out=out),
        "x[idx]": lambda ids: x[ids],
    }

    def turn(gather: Callable[[Tensor], object], number: int) -> None:
        for ids in calls[number * A_TURN : (number + 1) * A_TURN]:
            gather(ids)

    turns = {name: partial(turn, gather) for name, gather in methods.items()}
    seconds = take_turns(turns, len(calls) // A_TURN)
    return {name: A_TURN * IDS / float(each.median()) for name, each in seconds.items()}


def filled(size: int, dim: int) -> FeatureTable:
    """Return a table whose pages are all there."""
    table = FeatureTable(dim)
    step = 1 << 16
    for start in range(0, size, step):
        table.append(torch.ones(min(step, size - start), dim))
    return table


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
