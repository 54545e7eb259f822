"""What the planner is worth where batches read far, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from tgflow.bench.cache_trace import WINDOW, Trace, replay
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.plan import NegativeSampler, Plan
from tgflow.plan.belady import BeladyPlanner

MODELS = {"TGN": (10,), "TGAT": (10, 10)}
SHARE = 0.1
MOST_BATCHES, QUICK_BATCHES = 1000, 60
LEAST_RATIO, MOST_OVER, MOST_NS = 1.4, 1.2, 60.0


def planner_rows(name: str, events: EventBatch, options: Options) -> Iterator[Row]:
    """Misses of LRU, of a window of 256 and of full knowledge; nanoseconds of planning an access.

    A row's first use is a miss whatever the policy; `first uses` says which share of LRU's they
    are.
    """
    num = QUICK_BATCHES if options.quick else MOST_BATCHES
    for model, fanouts in MODELS.items():
        trace = _trace(events[: 200 * num], fanouts)
        capacity = max(round(SHARE * trace.num_rows), 1)
        names = ("lru", "belady-256", "belady")
        lru, window, whole = (replay(trace, capacity, each).counters.misses for each in names)
        params: Params = {"stream": name, "model": model, "share": SHARE}
        first: Params = {"first uses": round(trace.num_rows / lru, 3)}
        ratio = lru / max(window, 1)
        yield Row("misses, LRU to window of 256", ratio, "times", params | first, LEAST_RATIO)
        over = window / max(whole, 1)
        yield Row("misses, window of 256 to all", over, "of all's", params, MOST_OVER)
        cost = min(_planning_ns(trace, capacity) for _ in range(options.rounds))
        yield Row("planning an access", cost, "ns", params, MOST_NS)


def _trace(events: EventBatch, fanouts: tuple[int, ...]) -> Trace:
    graph = TemporalGraph.from_events(replace(events, x=torch.zeros(len(events), 1), label=None))
    plan = Plan(
        graph,
        seed=0,
        batch_size=200,
        fanouts=fanouts,
        strategy="recent",
        visibility="event",
        negatives=NegativeSampler(),
        seconds_per_tick=1.0,
        with_memory=len(fanouts) == 1,
    )
    return Trace("edges", [plan.draft(0, i).edges[1:] for i in range(len(plan))], len(events))


def _planning_ns(trace: Trace, capacity: int) -> float:
    planner, seconds = BeladyPlanner(capacity), 0.0
    for start in range(0, len(trace.batches), WINDOW):
        window = trace.batches[start : start + WINDOW]
        began = time.perf_counter()
        planner.plan(window)
        seconds += time.perf_counter() - began
    return 1e9 * seconds / sum(map(len, trace.batches))
