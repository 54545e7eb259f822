"""Batches of inference queries: sampled or whole neighborhoods, in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.graph import Neighbors, TemporalGraph
from tgflow.inference.queries import Fanout
from tgflow.plan.assembly import Roots, assemble, walk_of
from tgflow.plan.plan import Plan
from tgflow.sampler import Sampler
from tgflow.sampling.hops import HopQueries, answer_walk
from tgflow.sampling.rows import sample_neighbors

MAX_SLOTS = 1 << 23
"""Slots of neighbors that a hop may have; each takes 37 bytes, and what a model makes of it."""
_FEW = 16


class TooManyNeighbors(MemoryError):
    """A hop has more slots than it may: fewer queries at a time have fewer."""


def all_neighbors(graph: TemporalGraph, sampler: Sampler, asked: HopQueries) -> Neighbors:
    """Return all neighbors that the sampler might take of each query, newest first."""
    size, k = len(asked.nodes), _FEW
    while True:
        if size * k > MAX_SLOTS and k > _FEW:
            raise TooManyNeighbors(
                f"all neighbors of {size:,} nodes, of some more than {k // 4:,}, are more than the "
                f"{MAX_SLOTS:,} slots that a hop may have: give a fan-out as a number"
            )
        found = _sampled(graph, sampler, asked, k)
        most = int(found.count.max()) if size else 0
        if most < k:
            return _narrowed(found, max(most, 1))
        k *= 4


def _sampled(graph: TemporalGraph, sampler: Sampler, asked: HopQueries, k: int) -> Neighbors:
    return sample_neighbors(
        graph, sampler, asked.nodes, asked.t, k,
        key=asked.key, as_of=asked.as_of, params=asked.params,
    )  # fmt: skip


def _narrowed(found: Neighbors, k: int) -> Neighbors:
    columns = {name: getattr(found, name)[:, :k].contiguous() for name in ("nodes", "t", "eid")}
    return replace(found, **columns)


def in_parts(size: int, at_once: int, make: Callable[[slice], Tensor]) -> Tensor:
    """Return what `make` makes of all rows, ever fewer at a time where they see too many."""
    parts: list[Tensor] = []
    start = 0
    while start < size or not parts:
        rows = slice(start, min(start + at_once, size))
        try:
            parts.append(make(rows))
        except TooManyNeighbors:
            if rows.stop - rows.start <= 1:
                raise
            at_once = (rows.stop - rows.start) // 2
            continue
        start = rows.stop
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def query_batch(plan: Plan, fanouts: Sequence[Fanout], roots: Roots) -> Batch:
    """Return the batch of some roots, where the graph is."""
    if "all" not in fanouts:
        return plan.of_roots(roots)
    placed, left = plan.placed(roots), iter(fanouts)

    def neighbors(asked: HopQueries) -> Neighbors:
        fanout = next(left)
        if fanout == "all":
            return all_neighbors(plan.graph, plan.sampler, asked)
        return _sampled(plan.graph, plan.sampler, asked, fanout)

    hops = answer_walk(walk_of(plan, placed), neighbors)
    return assemble(plan, placed, hops).gathered(plan.graph)
