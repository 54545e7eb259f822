"""Preparation of whole batches for TGN and TGAT, on one thread."""

from dataclasses import replace
from typing import Any

import torch

from benchmarks.options import BATCH_SIZE, X_DIM, Options, restored_threads, seconds_of
from benchmarks.results import Params, Row
from tgflow import _core
from tgflow.graph import TemporalGraph
from tgflow.nn.groups import PAIR_GROUPS, numbers_of
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan

PREPARED: dict[str, tuple[dict[str, Any], float]] = {
    "TGN, 1 hop of 10": ({"with_memory": True}, 1e-3),
    "TGN, 1 hop of 10, pair features": (
        {"with_memory": True, "counts": numbers_of(PAIR_GROUPS)},
        6e-4,
    ),
    "TGAT, 2 hops of 10": ({"fanouts": (10, 10)}, 6e-3),
    "TGAT, 2 hops of 10, uniform": ({"fanouts": (10, 10), "strategy": "uniform"}, 6e-3),
}
"""Settings of a plan, and the target in seconds for a batch without features."""


def run(options: Options) -> list[Row]:
    """Measure the preparation of batches of 200 events and random negatives on one thread."""
    with restored_threads():
        _core.set_num_threads(1)
        _, events = options.wikipedia()
        x = torch.randn(len(events), X_DIM, generator=torch.Generator().manual_seed(0))
        return [
            prepare_row(graph, name, options.rounds)
            for graph in map(TemporalGraph.from_events, (events, replace(events, x=x)))
            for name in PREPARED
        ]


def prepare_row(graph: TemporalGraph, name: str, rounds: int) -> Row:
    """Measure the preparation of every fourth batch of the second half; the best round counts."""
    changes, limit_s = PREPARED[name]
    settings: dict[str, Any] = {"fanouts": (10,), "strategy": "recent", "with_memory": False}
    plan = Plan(
        graph,
        seed=0,
        batch_size=BATCH_SIZE,
        visibility="event",
        negatives=NegativeSampler(random=1),
        **settings | changes,
    )
    indices = range(len(plan) // 2, len(plan) - 1, 4)
    best = min(
        seconds_of(lambda: [plan.batch(0, index) for index in indices]) for _ in range(rounds)
    )
    x_dim = 0 if graph.edge_x is None else graph.edge_x.dim
    params: Params = {"batch": BATCH_SIZE, "x_dim": x_dim, "threads": 1}
    target = None if x_dim else BATCH_SIZE / limit_s
    return Row(f"prepare, {name}", BATCH_SIZE * len(indices) / best, "events/s", params, target)
