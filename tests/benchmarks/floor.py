"""The least time that a query's bytes need to cross the GPU's memory bus."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tgflow.bench.grown import POWER_LAW, Grown
from tgflow.bench.options import Options
from tgflow.bench.queries import K, on, race_of, random_queries
from tgflow.bench.row import Params, Row
from tgflow.bench.sample import GPU_CALL, strategies
from tgflow.bench.turns import seconds_of

SECTOR = 32
"""Bytes of the smallest read."""
COPIED = 1 << 30
CALLS = 8


def floor_rows(options: Options, device: str) -> Iterator[Row]:
    """The share of that speed which random queries reach, at each size of the graph."""
    grown = Grown(options.sizes, device)
    for size in options.sizes:
        options.say(f"sample: the floor of {size:,} entries on {grown.device}")
        grown.grow_to(size)
        asked = random_queries(grown.num_nodes, grown.num_events, CALLS, GPU_CALL)
        queries = on(grown.graph.device, asked)
        params: Params = {"stream": POWER_LAW, "entries": size, "device": grown.device, "k": K}
        for strategy, sample, _ in strategies(grown.graph, None):
            own_s = race_of([(sample, queries)], options.rounds, grown.device)[0]
            filled = sum(int(sample(*each).count.sum()) for each in queries)
            least_s = floor_seconds(strategy, filled, CALLS * GPU_CALL, device)
            name = f"{strategy}, cold, share of the bandwidth floor"
            yield Row(name, least_s / own_s, "", params)


def floor_seconds(strategy: str, num_filled: int, num_queries: int, device: str) -> float:
    """Return the seconds to move what queries cannot do without, as fast as the device copies.

    Each query is read (16 bytes), with the node's head (a sector), its directory and first block
    (two); each neighbor found is read (16 bytes of a run with one sector more for where it begins,
    or where they are scattered a sector each); and a row of `K` slots of 24 bytes and a count of 4
    is written. Searching is not in it.
    """
    query_bytes = 16 + 3 * SECTOR + 24 * K + 4
    if strategy == "recent":
        query_bytes += SECTOR
    entry_bytes = 16 if strategy == "recent" else SECTOR
    return (num_queries * query_bytes + num_filled * entry_bytes) / bandwidth(device)


def bandwidth(device: str) -> float:
    """Return bytes a second that the device reads and writes when it copies."""
    source = torch.empty(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = min(seconds_of(lambda: target.copy_(source), device) for _ in range(5))
    return 2 * COPIED / best
