"""Cache contents carried over between a trainer's passes.

GNNFlow (SoCC 2024) calls it *reuse* to keep contents from one round to the next, and *restore* to
bring back those from before an evaluation, together with the round's first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tgflow.graph import TemporalGraph
from tgflow.graph.cache import CachedTable, cache_of
from tgflow.plan._native import Feature
from tgflow.plan.assemble import feature_inputs
from tgflow.plan.plan import Plan


def caches_of(graph: TemporalGraph) -> dict[Feature, CachedTable]:
    """Return the caches in front of a graph's tables, by table name."""
    caches = ((each.name, cache_of(each.table)) for each in feature_inputs(graph))
    return {name: cache for name, cache in caches if cache is not None}


@contextmanager
def isolate_evaluation(
    graph: TemporalGraph, upcoming: Callable[[], dict[Feature, Tensor]]
) -> Iterator[None]:
    """Context manager of an evaluation pass: restores the rows that the next pass reads first.

    GNNFlow restores all contents and preloads all of the first rows. A small cache evicts most of
    these before use, and more rows are read from the table than saved (`make bench ARGS=cache`
    measures both). So only rows that were cached and that the next pass reads first are restored:
    each read here is a hit there.

    A planned cache includes the pass in its plan and carries contents over by itself; a static
    cache does not change.
    """
    caches = {n: c for n, c in caches_of(graph).items() if c.policy not in ("static", "belady")}
    held = {name: cache.contents() for name, cache in caches.items()}
    yield
    first = upcoming() if caches else {}
    for name in caches.keys() & first.keys():
        is_held = torch.isin(first[name], held[name].to(first[name].device))
        caches[name].preload(first[name][is_held])


def first_rows(plan: Plan, epoch: int, num_epochs: int) -> dict[Feature, Tensor]:
    """Return the ids of the rows that the first batch of `epoch` reads, by table."""
    if epoch == num_epochs:
        return {}
    batch = plan.pending(epoch, 0)
    return {table.name: table.trace(batch) for table in feature_inputs(plan.graph)}
