"""Small plans for tests."""

from __future__ import annotations

from typing import Any

from tgflow.graph import TemporalGraph
from tgflow.graph.counts import Count
from tgflow.plan import NegativeSampler, Plan


def plan_of(graph: TemporalGraph, **changes: Any) -> Plan:
    """Batches of ten events with two uniform hops; `changes` replace arguments."""
    arguments: dict[str, Any] = {
        "seed": 7,
        "batch_size": 10,
        "fanouts": (3, 2),
        "strategy": "uniform",
        "visibility": "event",
        "negatives": NegativeSampler(random=1),
        "with_memory": True,
        "counts": (Count("pair").age, Count("dst", half_life=30.0).decayed),
    }
    return Plan(graph, **(arguments | changes))
