"""The tables of a graph that batches read: which there are, and how each is read for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from tgflow.cache import CachedTable, cache_of
from tgflow.graph import TemporalGraph
from tgflow.plan._native import unique_events
from tgflow.plan.pending import Feature, PendingBatch
from tgflow.tables import FeatureTable
from tgflow.tables.protocols import SpreadTable, Table, spread_table
from tgflow.tables.row_view import RowView


@dataclass(frozen=True, slots=True, eq=False)
class FeatureInput:
    """A table of the graph."""

    name: Feature
    table: Table

    def gather(self, batch: PendingBatch) -> Tensor:
        """Return the rows that a batch needs of it."""
        with self.error_context():
            return self.table.gather(batch.ids[self.name])

    def gather_all(self, batches: Sequence[PendingBatch]) -> Sequence[Tensor]:
        """Return the rows that each of several batches needs of it, gathered in one call.

        Of a table over ranks the batches of a micro-batch, which come one after the other, get a
        row once.
        """
        sizes = [len(batch.ids[self.name]) for batch in batches]
        ids = [
            torch.cat([batch.ids[self.name] for batch in group])
            for _, group in groupby(batches, key=lambda pending: pending.batch.index)
        ]
        with self.error_context():
            if isinstance(self.table, SpreadTable):
                rows = torch.cat(self.table.gather_each(ids))
            else:
                rows = self.table.gather(torch.cat(ids))
        return torch.split(rows, sizes)

    @contextmanager
    def error_context(self) -> Iterator[None]:
        """Say in a note which table it was that failed."""
        try:
            yield
        except Exception as error:
            error.add_note(f"{self.name} ({self.table.placement})")
            raise

    @property
    def base_table(self) -> Table:
        """What is behind selections of rows: a table or a cache."""
        table = self.table
        while isinstance(table, RowView):
            table = table.table
        return table

    def base_ids(self, batch: PendingBatch) -> Tensor:
        """Return the ids, also -1, by which a cache behind the table knows the rows of a batch."""
        ids, table = batch.ids[self.name], self.table
        while isinstance(table, RowView):
            ids, table = table.ids_of(ids), table.table
        return ids

    def trace(self, batch: PendingBatch) -> Tensor:
        """Return the distinct ones of `base_ids`, without -1, in order of first appearance.

        On the CPU; synchronizes with a GPU.
        """
        ids = self.base_ids(batch).cpu()
        return ids[ids >= 0] if self.name == "edge_x" else unique_events([ids])[0][1:]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Enclose the replay of a captured `gather`, which is not seen otherwise."""
        base, cache = self.table.base, cache_of(self.base_table)
        view = base.view if isinstance(base, FeatureTable) else None
        turn = nullcontext() if cache is None else cache.reading()
        with turn, nullcontext() if view is None else view.readers.reading():
            yield

    @property
    def is_in_reach_of_a_gpu(self) -> bool:
        """Whether kernels gather the rows by ids on a GPU, for which no host has to wait."""
        cache = cache_of(self.base_table)
        is_there = cache is None or cache.gpu is not None
        return is_there and self.table.placement in ("device", "uva")

    @property
    def planned_cache(self) -> CachedTable | None:
        """The cache through which the table is read, if it is one that is to be planned for."""
        cache = cache_of(self.base_table)
        return cache if cache is not None and cache.policy == "belady" else None


def feature_inputs(graph: TemporalGraph) -> list[FeatureInput]:
    """Return the tables that batches of `graph` read."""
    named: tuple[tuple[Feature, Table | None], ...] = (
        ("edge_x", graph.edge_x),
        ("node_x", graph.node_x),
    )
    return [FeatureInput(name, table) for name, table in named if table is not None]


def check_preparable(graph: TemporalGraph) -> None:
    """Raise ValueError if a GPU cannot prepare the batches of a graph that is on it."""
    for table in feature_inputs(graph):
        if graph.gpu is not None and table.planned_cache is not None:
            raise ValueError(
                f'the cache of {table.name} has policy="belady", which is planned for on the host, '
                f"and a GPU that samples tells no host what; the graph is on {graph.device}: use "
                'policy="lru", or TemporalGraph(device="cpu"), whose batches are copied to the GPU'
            )


def check_unspread(graph: TemporalGraph) -> None:
    """Raise ValueError if features are with several ranks, and are to be read by one alone."""
    for table in feature_inputs(graph):
        if spread_table(table.table) is not None:
            raise ValueError(
                f"the rows of {table.name} are spread over ranks, which read them together in a "
                "ContinualTrainer: give a graph that has all of them, as one of the run's "
                "checkpoint"
            )


def check_unplanned(graph: TemporalGraph) -> None:
    """Raise ValueError if features come through a cache that needs a future to plan for."""
    for table in feature_inputs(graph):
        if table.planned_cache is not None:
            raise ValueError(
                f'the cache of {table.name} has policy="belady", which plans for what comes next, '
                'and a live stream has no future to know; use policy="lru"'
            )
