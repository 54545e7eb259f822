"""Batches of inference queries: sampled or whole neighborhoods, in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.graph import Neighbors, TemporalGraph
from tgflow.inference.queries import Fanout
from tgflow.plan.assembly import assemble_hops, walk_of, with_features
from tgflow.plan.plan import preparer_of
from tgflow.plan.spec import PlanSpec, Roots
from tgflow.sampler import Sampler
from tgflow.sampling.hops import HopQueries, answer_walk
from tgflow.sampling.rows import sample_neighbors

MAX_SLOTS = 1 << 23
"""Slots of neighbors that a hop may have; each takes 37 bytes, and what a model makes of it."""
_FEW = 16


class TooManyNeighbors(MemoryError):
    """A hop has more slots than it may: fewer queries at a time have fewer."""


def all_neighbors(graph: TemporalGraph, sampler: Sampler, asked: HopQueries) -> Neighbors:
    """Return all neighbors that the sampler might take of each query, newest first.

    Rows are as wide as the longest one. Synchronizes with a device.

    Args:
        graph: Graph to read.
        sampler: Whose `k` neighbors are all of them where `k` is large enough.
        asked: The queries; `k` is not read.

    Raises:
        TooManyNeighbors: If there are more than `MAX_SLOTS`.
    """
    size, k = len(asked.nodes), _FEW
    while True:
        if size * k > MAX_SLOTS and k > _FEW:
            raise TooManyNeighbors(
                f"all neighbors of {size:,} nodes, of some more than {k // 4:,}, are more than the "
                f"{MAX_SLOTS:,} slots that a hop may have: give a fan-out as a number"
            )
        found = sample_neighbors(
            graph, sampler, asked.nodes, asked.t, k,
            key=asked.key, as_of=asked.as_of, params=asked.params,
        )  # fmt: skip
        most = int(found.count.max()) if size else 0
        if most < k:
            return _narrowed(found, max(most, 1))
        k *= 4


def _narrowed(found: Neighbors, k: int) -> Neighbors:
    columns = {name: getattr(found, name)[:, :k].contiguous() for name in ("nodes", "t", "eid")}
    return replace(found, **columns)


def in_parts(size: int, at_once: int, make: Callable[[slice], Tensor]) -> Tensor:
    """Return what `make` makes of all rows, ever fewer at a time where they see too many.

    Args:
        size: How many rows there are; of none, `make` is called once.
        at_once: How many to take at a time, at least 1.
        make: Makes rows of some.

    Raises:
        TooManyNeighbors: If a row by itself sees too many.
    """
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


class QueryBatches:
    """Makes batches of questions, where the graph is.

    Args:
        spec: What a plan would be; of its fan-outs only the number is read where some are "all".
        fanouts: Neighbors per hop.
    """

    def __init__(self, spec: PlanSpec, fanouts: Sequence[Fanout]) -> None:
        self._spec, self._fanouts = spec, tuple(fanouts)
        self._preparer = preparer_of(spec)

    def of_roots(self, roots: Roots) -> Batch:
        """Return the batch of some roots.

        Raises:
            TooManyNeighbors: If the whole neighborhoods of these roots are too large.
        """
        if "all" not in self._fanouts:
            return self._preparer.of_roots(roots)
        columns, fanouts = self._preparer.columns(roots), iter(self._fanouts)
        hops = answer_walk(
            walk_of(self._spec, roots, columns), lambda asked: self.neighbors(asked, next(fanouts))
        )
        return with_features(self._spec, assemble_hops(self._spec, roots, columns, hops))

    def neighbors(self, asked: HopQueries, fanout: Fanout) -> Neighbors:
        """Return the neighbors of a hop's queries.

        Raises:
            TooManyNeighbors: If all are asked for, and they are too many.
        """
        spec = self._spec
        if fanout == "all":
            return all_neighbors(spec.graph, spec.sampler, asked)
        return sample_neighbors(
            spec.graph, spec.sampler, asked.nodes, asked.t, fanout,
            key=asked.key, as_of=asked.as_of, params=asked.params,
        )  # fmt: skip
