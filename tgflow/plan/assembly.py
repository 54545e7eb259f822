"""From the roots of a batch to the batch, on the roots' device; tables that batches read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from tgflow.batch import Batch, BatchSlice, HostEvents
from tgflow.cache import CachedTable, cache_of
from tgflow.cuda import frontier
from tgflow.cuda.device import Device
from tgflow.events import NO_NODE
from tgflow.graph import TemporalGraph
from tgflow.plan import _native
from tgflow.plan._native import unique_events
from tgflow.plan.negatives import Negatives
from tgflow.sampling import Frontier
from tgflow.sampling.expand import distinct
from tgflow.sampling.hops import Hops, HopWalk, hop_by_hop, walk_here
from tgflow.tables import FeatureTable
from tgflow.tables.row_view import RowView
from tgflow.tables.table import Table

if TYPE_CHECKING:
    from tgflow.plan.plan import Plan

Feature = Literal["edge_x", "node_x"]
"""A table of the graph whose rows a batch reads."""
_NO_COUNTS = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Roots:
    """What a batch asks about: its events and negatives, drawn on the host; or copied to a GPU."""

    epoch: int
    index: int
    key: int
    """Of the batch's draws."""
    num_new: int
    host: HostEvents
    negatives: Negatives
    queries: Frontier
    """The sources, the destinations and the negatives of all events; negatives' sources follow
    where they are not the events' own. Not deduplicated."""
    counts: Tensor = _NO_COUNTS
    """int64 `[C * B * (1 + m)]`: the answers to the plan's counts; see `CountHistory.read`."""
    slice: BatchSlice | None = None
    """As `Batch.slice`."""
    columns: Mapping[str, Tensor] | None = None
    """The events' columns on a GPU; None: those of `host`."""
    begin: Tensor | None = None
    """On a GPU `host.begin`, int64 `[1]`."""
    params: Tensor | None = None
    """On a GPU int64 `[H, 3]`: what the samplers of each hop read, see `Descent.params`."""

    @property
    def events(self) -> Mapping[str, Tensor]:
        """`eid`, `src`, `dst` and `t` of the events, where the batch is prepared."""
        host = self.host
        return self.columns or {"eid": host.eid, "src": host.src, "dst": host.dst, "t": host.t}

    def split(self, column: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the parts of a column of `queries`, as views."""
        num, m = self.negatives.dst.shape
        src, dst, rest = column.tensor_split((num, 2 * num))
        negative_dst = rest[: num * m].view(num, m)
        if self.negatives.own_sources:
            return src, dst, for_each_negative(src, m), negative_dst
        return src, dst, rest[num * m :].view(num, m), negative_dst


def for_each_negative(column: Tensor, m: int) -> Tensor:
    """Return a value of each event for each of its negatives, `[B, m]`."""
    return column.unsqueeze(1).expand(-1, m)


def walk_of(plan: Plan, roots: Roots) -> HopWalk:
    """Return the hops of a batch, as generators of `tgflow.sampling.hops` are."""
    if plan.with_nodes:
        top, rows = distinct(roots.queries, plan.gpu)
    else:
        rows = roots.queries.nodes.new_empty(0)
        top = Frontier(rows, rows)
    return hop_by_hop(
        plan.graph.seconds_per_tick, plan.gpu, top, plan.fanouts, rows=rows, key=roots.key,
        as_of=roots.host.end if plan.sees_all_before else None,
        by_time=False, by_position=plan.with_memory, params=roots.params,
    )  # fmt: skip


def assemble(plan: Plan, roots: Roots, hops: Hops | None = None) -> PendingBatch:
    """Return the batch of `roots` before its features are read. Does not synchronize."""
    if hops is None:
        hops = walk_here(plan.graph, walk_of(plan, roots), plan.sampler)
    graph, inputs, events = plan.graph, hops.inputs, roots.events
    if plan.with_nodes:
        src_row, dst_row, negative_src_row, negative_dst_row = roots.split(hops.roots)
        position = _positions(roots, inputs, plan.with_memory)
    else:
        assert roots.queries.position is not None
        src_row = dst_row = hops.roots
        negative_src_row = negative_dst_row = hops.roots.view(0, roots.negatives.dst.shape[1])
        position = roots.queries.position[: len(roots.host.eid)]
    batch = Batch(
        epoch=roots.epoch,
        index=roots.index,
        num_new=roots.num_new,
        seconds_per_tick=graph.seconds_per_tick,
        eid=events["eid"],
        src=events["src"],
        dst=events["dst"],
        t=events["t"],
        host=roots.host,
        x=None,
        negative_src=roots.negatives.src,
        negative_dst=roots.negatives.dst,
        src_row=src_row,
        dst_row=dst_row,
        negative_src_row=negative_src_row,
        negative_dst_row=negative_dst_row,
        blocks=hops.blocks,
        nodes=inputs.nodes if inputs.num_used is None else inputs.nodes.clamp(min=0),
        position=position,
        counts=plan.counts.read(roots.counts, 1 + roots.negatives.dst.shape[1]),
        num_fallbacks=roots.negatives.num_fallbacks,
        slice=roots.slice,
    )
    ids: dict[Feature, Tensor] = {}
    own_row, num_in_blocks = None, 0
    num_used = [each.num_used for each in hops.frontiers if each.num_used is not None]
    num_edges = torch.zeros_like(num_used[0]) if num_used else None
    if graph.edge_x is not None:
        found = distinct_events([*(block.eid for block in batch.blocks), batch.eid], plan.gpu)
        ids["edge_x"], (*rows, own_row), num_in_blocks, num_edges = found
        blocks = zip(batch.blocks, rows, strict=True)
        batch = replace(batch, blocks=tuple(replace(b, edge_row=row) for b, row in blocks))
    if graph.node_x is not None:
        ids["node_x"] = graph.node_rows(inputs.nodes)
    if num_used and num_edges is not None:
        batch = replace(batch, num_used=torch.stack([*num_used, num_edges]))
    return PendingBatch(batch, ids, num_in_blocks, own_row)


def _positions(roots: Roots, inputs: Frontier, with_memory: bool) -> Tensor:
    """Return as of which log position each input row reads memory; padding as of `begin`."""
    begin = roots.host.begin if roots.begin is None else roots.begin
    if inputs.position is None or not with_memory:
        if isinstance(begin, int):
            return torch.full_like(inputs.nodes, begin)
        return begin.expand_as(inputs.nodes).contiguous()
    if inputs.num_used is None:
        return inputs.position
    return torch.where(inputs.nodes == NO_NODE, begin, inputs.position)


def distinct_events(
    eids: list[Tensor], gpu: Device | None
) -> tuple[Tensor, list[Tensor], int, Tensor | None]:
    """As `_native.unique_events`, wherever the events are; padding may be read by blocks too."""
    if gpu is None:
        return *_native.unique_events(eids), None
    all_eids = torch.cat([eid.reshape(-1) for eid in eids])
    found, row, num_used = frontier.unique_events(gpu, all_eids)
    parts = zip(torch.split(row, [eid.numel() for eid in eids]), eids, strict=True)
    return found, [part.view(eid.shape) for part, eid in parts], len(found), num_used


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
        """Return the batch with features, float32 `[len(ids), x_dim]` of each table given."""
        node_x, edge_x = rows.get("node_x", self.batch.node_x), rows.get("edge_x")
        if edge_x is None or self.own_row is None:
            has_all = node_x is self.batch.node_x
            return self.batch if has_all else replace(self.batch, node_x=node_x)
        table, own_row = edge_x[: self.num_in_blocks], self.own_row
        is_here = edge_x.is_cpu
        return replace(
            self.batch,
            x=_native.gather_rows(edge_x, own_row) if is_here else edge_x.index_select(0, own_row),
            node_x=node_x,
            blocks=tuple(replace(block, edge_table=table) for block in self.batch.blocks),
        )

    def gathered(self, graph: TemporalGraph) -> Batch:
        """Return the batch with the rows of all tables that are left, gathered where it is."""
        tables = [each for each in feature_inputs(graph) if each.name in self.ids]
        return self.with_features({each.name: each.gather(self) for each in tables})

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors take."""
        columns = [*self.ids.values(), *self.batch.tensors()]
        if self.own_row is not None:
            columns.append(self.own_row)
        return sum(column.nbytes for column in columns)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureInput:
    """A table of the graph."""

    name: Feature
    table: Table

    def gather(self, batch: PendingBatch) -> Tensor:
        """Return the rows that a batch needs of it."""
        with self.error_context():
            return self.table.gather(batch.ids[self.name])

    def gather_base(self, ids: Tensor) -> Tensor:
        """Return the rows of `base_ids`, on the device of these."""
        with self.error_context():
            return self.base_table.gather(ids)

    def gather_all(self, batches: Sequence[PendingBatch]) -> Sequence[Tensor]:
        """Return the rows that each of several batches needs of it, gathered in one call."""
        ids = [batch.ids[self.name] for batch in batches]
        with self.error_context():
            rows = self.table.gather(torch.cat(ids))
        return torch.split(rows, [len(each) for each in ids])

    @contextmanager
    def error_context(self) -> Iterator[None]:
        """Name the table in a note of errors."""
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
        """Return the distinct ones of `base_ids`, without -1, in order of first appearance."""
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
        """The cache through which the table is read, if its policy is "belady"."""
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
