"""What the planner is worth beside LRU, how much of that a window gives, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from tgflow.bench.cache_trace import WINDOW, Trace, replay
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.plan.belady import BeladyPlanner, plan_all

SHARE = 0.1
LEAST_RATIO, MOST_OVER, MOST_NS = 1.4, 1.2, 60.0


def planner_rows(trace: Trace, params: Params, options: Options) -> Iterator[Row]:
    """Misses of LRU, of a window of 256 and of full knowledge; nanoseconds of planning an access.

    `at most`: LRU's misses over those that no policy avoids. Targets are for rows of edges.
    """
    capacity = max(round(SHARE * trace.num_rows), 1)
    names = ("lru", "belady-256", "belady")
    lru, window, whole = (replay(trace, capacity, each).counters.misses for each in names)
    params = {**params, "rows of": trace.kind, "share": SHARE}
    is_edges = trace.kind == "edges"
    bound: Params = {"at most": round(lru / least_misses(trace, capacity), 2)}
    ratio, over = lru / max(window, 1), window / max(whole, 1)
    least = LEAST_RATIO if is_edges else None
    yield Row("misses, LRU to window of 256", ratio, "times", params | bound, least)
    most = MOST_OVER if is_edges else None
    yield Row("misses, window of 256 to all", over, "of all's", params, most)
    cost = min(_planning_ns(trace, capacity) for _ in range(options.rounds))
    yield Row("planning an access", cost, "ns", params, MOST_NS)


def least_misses(trace: Trace, capacity: int) -> int:
    """Return what every policy misses: first uses, and what of a batch exceeds the cache."""
    first_uses = int(torch.cat(trace.batches).bincount().count_nonzero())
    return max(first_uses, sum(max(len(ids) - capacity, 0) for ids in trace.batches))


def _planning_ns(trace: Trace, capacity: int) -> float:
    """All that a window of 256 costs: observing, planning and what Python adds to a batch."""
    began = time.perf_counter()
    for _ in plan_all(BeladyPlanner(capacity), trace.batches, WINDOW):
        pass
    return 1e9 * (time.perf_counter() - began) / sum(map(len, trace.batches))
