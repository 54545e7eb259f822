"""How fast batches are prepared, on one thread: negatives, neighbors, frontiers, edge features."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from tgflow import _core
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.bench.turns import restored_threads
from tgflow.graph import TemporalGraph
from tgflow.nn import PairFeatures
from tgflow.plan import NegativeSampler, Plan

BATCH_SIZE = 200
X_DIM = 172
SHAPES: dict[str, tuple[dict[str, Any], float]] = {
    "TGN, 1 hop of 10": ({"fanouts": (10,), "strategy": "recent", "with_memory": True}, 1e-3),
    "TGN, 1 hop of 10, pair features": (
        {
            "fanouts": (10,),
            "strategy": "recent",
            "with_memory": True,
            "counts": PairFeatures.counts,
        },
        6e-4,
    ),
    "TGAT, 2 hops of 10": ({"fanouts": (10, 10), "strategy": "recent", "with_memory": False}, 6e-3),
    "TGAT, 2 hops of 10, uniform": (
        {"fanouts": (10, 10), "strategy": "uniform", "with_memory": False},
        6e-3,
    ),
}
"""What a model asks of a plan, and the seconds a batch without features may take."""


def run(options: Options) -> list[Row]:
    """Measure the preparation of batches of 200 events with a random negative each."""
    with restored_threads():
        _core.set_num_threads(1)
        _, events = options.wikipedia()
        x = torch.randn(len(events), X_DIM, generator=torch.Generator().manual_seed(0))
        return [
            *_rows(TemporalGraph.from_events(events), options.rounds),
            *_rows(TemporalGraph.from_events(replace(events, x=x)), options.rounds),
        ]


def _rows(graph: TemporalGraph, rounds: int) -> list[Row]:
    x_dim = 0 if graph.edge_x is None else graph.edge_x.dim
    rows = []
    for name, (shape, limit_s) in SHAPES.items():
        plan = Plan(
            graph,
            seed=0,
            batch_size=BATCH_SIZE,
            visibility="event",
            negatives=NegativeSampler(),
            **shape,
        )
        speed = BATCH_SIZE / best_seconds(plan, rounds)
        params: Params = {"batch": BATCH_SIZE, "x_dim": x_dim, "threads": 1}
        goal = None if x_dim else BATCH_SIZE / limit_s
        rows.append(Row(f"prepare, {name}", speed, "events/s", params, goal))
    return rows


def best_seconds(plan: Plan, rounds: int) -> float:
    """Return the least mean time, of `rounds` tries, to prepare a batch of the second half."""
    indices = range(len(plan) // 2, len(plan) - 1, 4)
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for index in indices:
            plan.batch(0, index)
        best = min(best, time.perf_counter() - started)
    return best / len(indices)
