"""A batch before its features are read, and the tables of a graph that batches read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.cache import CachedTable, cache_of
from tgflow.cuda import frontier
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.plan import _native
from tgflow.plan._native import unique_events
from tgflow.tables import FeatureTable
from tgflow.tables.row_view import RowView
from tgflow.tables.table import Table

Feature = Literal["edge_x", "node_x"]
"""A table of the graph whose rows a batch reads."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingBatch:
    """A batch without features, and which rows of them it needs."""

    batch: Batch
    """As it will be, but for `x`, `node_x` and the blocks' `edge_table`."""
    ids: dict[Feature, Tensor]
    """int64, of each table of the graph the rows to gather, in one call.

    `edge_x`: -1 and then the distinct events, first the blocks', in order of first appearance, then
    the batch's own; on a GPU as many more -1 as there could be events. `node_x`: the row of each of
    `nodes`, -1 for those that have none.
    """
    num_in_blocks: int = 0
    """How many rows of `edge_x`, from the first on, the blocks read; on a GPU all, as they may."""
    own_row: Tensor | None = None
    """int64 `[B]`: the row of each of the batch's own events among those of `edge_x`."""

    def with_features(self, rows: Mapping[Feature, Tensor]) -> Batch:
        """Return the batch, with features of the tables that are given.

        Args:
            rows: Of tables the rows of `ids`, float32 `[len(ids), x_dim]`.
        """
        node_x, edge_x = rows.get("node_x", self.batch.node_x), rows.get("edge_x")
        if edge_x is None or self.own_row is None:
            has_all = node_x is self.batch.node_x
            return self.batch if has_all else replace(self.batch, node_x=node_x)
        table = edge_x[: self.num_in_blocks]
        return replace(
            self.batch,
            x=_rows_of(edge_x, self.own_row),
            node_x=node_x,
            blocks=tuple(replace(block, edge_table=table) for block in self.batch.blocks),
        )

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors take."""
        columns = [*self.ids.values(), *self.batch.tensors()]
        if self.own_row is not None:
            columns.append(self.own_row)
        return sum(column.nbytes for column in columns)


def _rows_of(table: Tensor, row: Tensor) -> Tensor:
    return _native.gather_rows(table, row) if table.is_cpu else table.index_select(0, row)


def pending_batch(
    batch: Batch,
    *,
    with_edges: bool,
    node_rows: Tensor | None,
    gpu: Device | None,
    num_used: Sequence[Tensor] = (),
) -> PendingBatch:
    """Return `batch` with the rows of features that it needs.

    Args:
        batch: As it will be, but for what it reads of tables.
        with_edges: Whether the graph has edge features.
        node_rows: Rows of the batch's nodes, or None if the graph has no node features.
        gpu: Where the batch is; None: on the CPU.
        num_used: On a GPU the rows in use of all its frontiers from the top down, int64 `[]` each;
            none where there is no frontier, and nothing is cut to a size.
    """
    ids: dict[Feature, Tensor] = {} if node_rows is None else {"node_x": node_rows}
    if not with_edges:
        if num_used:
            no_edges = torch.zeros_like(num_used[0])
            batch = replace(batch, num_used=_stacked([*num_used, no_edges]))
        return PendingBatch(batch, ids)
    found = distinct_events([*(block.eid for block in batch.blocks), batch.eid], gpu)
    *rows, own_row = found.rows
    blocks = (replace(b, edge_row=row) for b, row in zip(batch.blocks, rows, strict=True))
    all_used = [] if found.num_used is None or not num_used else [*num_used, found.num_used]
    return PendingBatch(
        replace(batch, blocks=tuple(blocks), num_used=_stacked(all_used)),
        {"edge_x": found.eids, **ids},
        num_in_blocks=found.num_in_blocks,
        own_row=own_row,
    )


def _stacked(numbers: list[Tensor]) -> Tensor | None:
    return torch.stack(numbers) if numbers else None


class DistinctEvents(NamedTuple):
    """Events of several lists, each once; see `_native.unique_events`."""

    eids: Tensor
    rows: list[Tensor]
    num_in_blocks: int
    num_used: Tensor | None = None
    """On a GPU, how many of `eids` are in use, int64 `[]`; the others are padding."""


def distinct_events(eids: list[Tensor], gpu: Device | None) -> DistinctEvents:
    """As `_native.unique_events`, wherever the events are; padding may be read by blocks too."""
    if gpu is None:
        return DistinctEvents(*_native.unique_events(eids))
    all_eids = torch.cat([eid.reshape(-1) for eid in eids])
    distinct, row, num_used = frontier.unique_events(gpu, all_eids)
    parts = zip(torch.split(row, [eid.numel() for eid in eids]), eids, strict=True)
    rows = [part.view(eid.shape) for part, eid in parts]
    return DistinctEvents(distinct, rows, len(distinct), num_used)


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
        """Return the rows that each of several batches needs of it, gathered in one call."""
        ids = [batch.ids[self.name] for batch in batches]
        with self.error_context():
            rows = self.table.gather(torch.cat(ids))
        return torch.split(rows, [len(each) for each in ids])

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


def check_unplanned(graph: TemporalGraph) -> None:
    """Raise ValueError if features come through a cache that needs a future to plan for."""
    for table in feature_inputs(graph):
        if table.planned_cache is not None:
            raise ValueError(
                f'the cache of {table.name} has policy="belady", which plans for what comes next, '
                'and a live stream has no future to know; use policy="lru"'
            )
