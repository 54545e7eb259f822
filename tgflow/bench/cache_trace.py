"""What a model gathers: the rows that the batches of a real plan ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tgflow.cache import CachedTable, cached
from tgflow.cache.policy import Policy
from tgflow.choices import Strategy
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.plan import NegativeSampler, Plan
from tgflow.plan._native import unique_events
from tgflow.plan.belady import BeladyPlanner, plan_all
from tgflow.tables import FeatureTable

BATCH_SIZE = 200
WINDOW = 256
"""Batches that a planner looks ahead."""


@dataclass(frozen=True, slots=True)
class Model:
    """What of a model decides which rows it reads."""

    name: str
    fanouts: tuple[int, ...]
    strategy: Strategy
    newest: int | None
    """The newest events, whose batches are replayed; None for all. Neighbors are of all events."""

    @property
    def note(self) -> str:
        """Say what is read."""
        return f"{self.name}, {' x '.join(map(str, self.fanouts))} {self.strategy} neighbors"


TGN = Model("TGN", (10,), "recent", None)
TGAT = Model("TGAT", (10, 10), "uniform", 60_000)
MODELS = (TGN, TGAT)
"""TGN (arXiv:2006.10637) and TGAT (arXiv:2002.07962) as GNNFlow trains them (SoCC 2024). TGAT's own
paper has 20 x 20 neighbors: a batch then reads more rows than a cache of 10 % has room for."""
QUICK_NEWEST = 4_000


@dataclass(frozen=True, slots=True)
class Trace:
    """Per batch the distinct ids that it gathers, int64 `[D]`, and how many rows there are."""

    kind: str
    batches: list[Tensor]
    num_rows: int


def plan_of(model: Model, events: EventBatch, *, quick: bool = False) -> Plan:
    """Return the batches of a model, each event with a random negative."""
    graph = TemporalGraph.from_events(replace(events, x=torch.zeros(len(events), 1), label=None))
    newest = len(events) if model.newest is None else model.newest
    return Plan(
        graph,
        seed=0,
        batch_size=BATCH_SIZE,
        fanouts=model.fanouts,
        strategy=model.strategy,
        visibility="event",
        negatives=NegativeSampler(),
        start=max(len(events) - (min(newest, QUICK_NEWEST) if quick else newest), 0),
        with_memory=model is TGN,
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
    draft = plan.pending(epoch, index)
    nodes = unique_events([draft.batch.nodes])[0]
    return draft.ids["edge_x"][1:], nodes[1:]


def replay(trace: Trace, capacity: int, policy: str) -> CachedTable:
    """Gather all of a trace through one cache, and read its counters then.

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
    lookahead = WINDOW if policy.endswith(str(WINDOW)) else None
    schedules = plan_all(BeladyPlanner(cache.capacity), trace.batches, lookahead)
    yield from (partial(cache.apply, schedule, schedule.ids) for schedule in schedules)


def hottest(trace: Trace, size: int) -> Tensor:
    """Return the ids that a trace asks for most often."""
    uses = torch.cat(trace.batches).bincount(minlength=trace.num_rows)
    return uses.argsort(descending=True, stable=True)[:size]
