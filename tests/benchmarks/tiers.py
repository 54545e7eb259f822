"""A graph under a budget beside one without: what it costs to move blocks out and read there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

import torch

from tgflow.bench.baseline import check_equal
from tgflow.bench.grown import POWER_LAW, Grown
from tgflow.bench.options import Options
from tgflow.bench.queries import CALL, K, Queries, on, random_queries
from tgflow.bench.row import Params, Row
from tgflow.bench.turns import take_turns
from tgflow.cuda.device import Device
from tgflow.sampling import Neighbors, recent_neighbors

DEVICE_SHARE = 0.5
"""Of the entries' bytes: the budget."""
NEAR = 0.9
"""What recency access to two tiers is to keep of the speed of one."""
MOST = 10_000_000
"""Entries of the graphs, unless all sizes are larger: two are held at once."""


def tier_rows(options: Options, device: str | Device) -> Iterator[Row]:
    """Grow two graphs along one stream, one of them under a budget, and sample both in turns.

    The answers are compared first. On the CPU both tiers are host memory: what is measured there is
    the upkeep, not the link between the tiers.
    """
    size = max((size for size in options.sizes if size <= MOST), default=min(options.sizes))
    whole = Grown([size], device)
    options.say(f"two tiers: {size:,} entries on {whole.device}")
    params: Params = {"stream": POWER_LAW, "entries": size, "device": whole.device, "threads": 1}
    whole_ns = median(whole.grow_to(size))
    budget = int(DEVICE_SHARE * whole.graph.stats().tiers[0].bytes)
    halved = Grown([size], device, budget)
    halved_ns = median(halved.grow_to(size))
    params["device"] = DEVICE_SHARE
    yield Row("insert, bulk, two tiers", 1e9 / halved_ns, "events/s", params, None, 1e9 / whole_ns)
    yield from sample_rows(whole, halved, params, options)


def sample_rows(whole: Grown, halved: Grown, params: Params, options: Options) -> Iterator[Row]:
    """Recency access and random access, and the share of neighbors that the device tier had."""
    calls = 4 if options.quick else 100
    accesses = {
        "now": latest_queries(whole, calls),
        "any": random_queries(whole.num_nodes, whole.num_events, calls),
    }
    for order, asked in accesses.items():
        queries = on(whole.graph.device, asked)
        methods = {
            "whole": call_of(partial(recent_neighbors, whole.graph), queries),
            "halved": call_of(partial(recent_neighbors, halved.graph), queries),
        }
        before = reads(halved)
        check_all(methods, len(queries))
        seconds = take_turns(methods, len(queries), options.rounds, whole.device)
        speeds = {name: CALL * len(queries) / float(s.sum()) for name, s in seconds.items()}
        near = NEAR if order == "now" and whole.device != "cpu" else None
        sized = params | {"k": K, "queries": CALL, "times": order}
        name = "recent, two tiers"
        yield Row(name, speeds["halved"], "queries/s", sized, None, speeds["whole"], near)
        device, host = (after - b for after, b in zip(reads(halved), before, strict=True))
        share = device / max(device + host, 1)
        yield Row("neighbors from the device tier", share, "of all", sized)


def latest_queries(grown: Grown, calls: int, size: int = CALL) -> Queries:
    """Return calls as a live stream makes them: the ends of the coming events, as of now."""
    events = grown.read(calls * (size // 2))
    now = torch.full((2 * (size // 2),), grown.num_events)
    parts = [events[at : at + size // 2] for at in range(0, len(events), size // 2)]
    return [(torch.cat([part.src, part.dst]), now) for part in parts]


def call_of(recent: Callable[..., Neighbors], queries: Queries) -> Callable[[int], Neighbors]:
    """Return a method for `take_turns`."""
    return lambda i: recent(*queries[i], K)


def check_all(methods: dict[str, Callable[[int], Neighbors]], num_calls: int) -> None:
    """Compare the answers to all calls."""
    for i in range(num_calls):
        whole, halved = (method(i) for method in methods.values())
        check_equal("two tiers", whole, halved)


def reads(grown: Grown) -> Sequence[int]:
    """Return how many neighbors have been sampled from each tier so far."""
    return grown.graph.backend.stats().reads
