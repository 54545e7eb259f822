"""What a model gathers: the rows that the batches of a real plan ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tgflow.cache import CachedTable, cached
from tgflow.cache.policy import Policy
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.plan import NegativeSampler, Plan
from tgflow.plan.belady import BeladyPlanner
from tgflow.plan.frontier import unique_events
from tgflow.tables import FeatureTable

BATCH_SIZE = 200
FANOUT = 10
WINDOW = 256
"""Batches that a planner looks ahead."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Per batch the distinct ids that it gathers, int64 `[D]`, and how many rows there are."""

    kind: str
    batches: list[Tensor]
    num_rows: int


def tgn_plan(events: EventBatch) -> Plan:
    """Return the batches of TGN (arXiv:2006.10637): 10 recent neighbours, a random negative."""
    graph = TemporalGraph.from_events(replace(events, x=torch.zeros(len(events), 1), label=None))
    return Plan(
        graph,
        seed=0,
        batch_size=BATCH_SIZE,
        fanouts=(FANOUT,),
        strategy="recent",
        visibility="event",
        negatives=NegativeSampler(),
        seconds_per_tick=1.0,
        with_memory=True,
    )


def traces(plan: Plan) -> list[Trace]:
    """Return what one epoch of a plan reads: rows of edges, and rows of nodes."""
    edges, nodes = zip(*(read_by(plan, 0, i) for i in range(len(plan))), strict=True)
    num_nodes = 1 + max(int(node.max()) for node in nodes)
    return [
        Trace("edges", list(edges), plan.graph.num_events),
        Trace("nodes", list(nodes), num_nodes),
    ]


def read_by(plan: Plan, epoch: int, index: int) -> tuple[Tensor, Tensor]:
    """Return the distinct events and nodes whose rows a batch gathers."""
    draft = plan.draft(epoch, index)
    nodes = unique_events([draft.batch.nodes])[0]
    return draft.edges[1:], nodes[1:]


def replay(trace: Trace, capacity: int, policy: str) -> CachedTable:
    """Gather all of a trace through one cache, whose counters then tell.

    A static cache holds the rows that the whole trace asks for most often: no other could do
    better. "belady-256" knows the next 256 batches, "belady" all.
    """
    table = FeatureTable(1, torch.uint8)
    table.append(torch.zeros(trace.num_rows, 1, dtype=torch.uint8))
    kind: Policy = "belady" if policy.startswith("belady") else policy  # type: ignore[assignment]
    cache = cached(table, rows=capacity, policy=kind)
    if kind == "static":
        cache.preload(hottest(trace, capacity))
    for step in steps(trace, cache, policy):
        step()
    return cache


def steps(trace: Trace, cache: CachedTable, policy: str) -> Iterator[Callable[[], object]]:
    """Yield what gathers each batch."""
    if not policy.startswith("belady"):
        yield from (partial(cache.gather, ids) for ids in trace.batches)
        return
    planner = BeladyPlanner(cache.capacity)
    size = WINDOW if policy.endswith(str(WINDOW)) else len(trace.batches)
    for start in range(0, len(trace.batches), size):
        window = trace.batches[start : start + size]
        for ids, script in zip(window, planner.plan(window), strict=True):
            yield partial(cache.execute, script, ids)


def hottest(trace: Trace, size: int) -> Tensor:
    """Return the ids that a trace asks for most often."""
    uses = torch.cat(trace.batches).bincount(minlength=trace.num_rows)
    return uses.argsort(descending=True, stable=True)[:size]
