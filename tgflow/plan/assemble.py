"""Batches from drawn roots: neighbors hop by hop on the graph's device, then features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch
from tgflow.graph.cache import CachedTable, cache_of
from tgflow.graph.events import NO_NODE
from tgflow.graph.sampling import Frontier
from tgflow.graph.sampling.expand import distinct
from tgflow.graph.sampling.hops import Hops, HopWalk, hop_by_hop, walk_here
from tgflow.graph.tables.row_view import RowView
from tgflow.graph.tables.table import Table
from tgflow.plan import _native
from tgflow.plan._native import Feature, unique_events
from tgflow.plan.draws import Draws, Roots


def walk_of(draws: Draws, roots: Roots) -> HopWalk:
    """Return the hops of a batch, as a generator of `tgflow.graph.sampling.hops`."""
    if draws.with_nodes:
        top, rows = distinct(roots.queries, draws.gpu)
    else:
        rows = roots.queries.nodes.new_empty(0)
        top = Frontier(rows, rows)
    return hop_by_hop(
        draws.graph.seconds_per_tick, draws.gpu, top, draws.fanouts, rows=rows, key=roots.key,
        as_of=roots.host.end if draws.sees_all_before else None,
        since=draws.graph.since(roots.host.begin),
        by_time=False, by_position=draws.with_memory, params=roots.params,
    )  # fmt: skip


def assemble(draws: Draws, roots: Roots, hops: Hops | None = None) -> PendingBatch:
    """Return the batch of `roots` before its features are read. Does not synchronize."""
    if draws.counts.asked and roots.counts is None:
        raise ValueError(
            "counts of past events are sharded with the graph: ask all ranks together "
            "(tgflow.ranks.sharded_counts.ShardedCounts), or make the graph without shard="
        )
    if hops is None:
        hops = walk_here(draws.graph, walk_of(draws, roots), draws.sampler)
    graph, inputs = draws.graph, hops.inputs
    events: Mapping[str, Any] = roots.events
    if draws.with_nodes:
        src_row, dst_row, negative_src_row, negative_dst_row = roots.split(hops.roots)
        position = _positions(roots, inputs, draws.with_memory)
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
        **events,
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
        since=graph.horizon_at(roots.host.begin) if roots.since is None else roots.since,
        counts=roots.counts,
        log_q=None if roots.negatives.log_q is None else roots.negatives.log_q.float(),
        num_fallbacks=roots.negatives.num_fallbacks,
        slice=roots.slice,
    )
    ids: dict[Feature, Tensor] = {}
    own_row, num_in_blocks = None, 0
    num_used = [each.num_used for each in hops.frontiers if each.num_used is not None]
    num_edges = torch.zeros_like(num_used[0]) if num_used else None
    if graph.edge_x is not None:
        found = distinct_events([*(block.eid for block in batch.blocks), batch.eid], draws.gpu)
        ids["edge_x"], (*rows, own_row), num_in_blocks, num_edges = found
        blocks = zip(batch.blocks, rows, strict=True)
        batch = replace(batch, blocks=tuple(replace(b, edge_row=row) for b, row in blocks))
    if graph.node_x is not None:
        ids["node_x"] = graph.node_rows(inputs.nodes)
    if num_used and num_edges is not None:
        batch = replace(batch, num_used=torch.stack([*num_used, num_edges]))
    if draws.for_gradients and draws.gpu is not None:
        from tgflow.plan.slot_lists import with_slot_lists

        batch = with_slot_lists(batch)
    return PendingBatch(batch, ids, num_in_blocks, own_row)


def _positions(roots: Roots, inputs: Frontier, with_memory: bool) -> Tensor:
    """Return the log position as of which each input row reads memory; padding: `begin`."""
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
    """As `_native.unique_events`, on any device; on a GPU blocks may also read padding."""
    if gpu is None:
        return *_native.unique_events(eids), None
    all_eids = torch.cat([eid.reshape(-1) for eid in eids])
    from tgflow.cuda import frontier

    found, row, num_used = frontier.unique_events(gpu, all_eids)
    parts = zip(torch.split(row, [eid.numel() for eid in eids]), eids, strict=True)
    return found, [part.view(eid.shape) for part, eid in parts], len(found), num_used


@dataclass(frozen=True, slots=True, eq=False)
class PendingBatch:
    """A batch without features, and the ids of the rows it needs."""

    batch: Batch
    """The final batch, without `x`, `node_x` and the blocks' `edge_table`."""
    ids: dict[Feature, Tensor]
    """int64 ids of the rows to gather, per table of the graph, in one call.

    `edge_x`: -1 and then the distinct events, first the blocks', in order of first appearance, then
    the batch's own; on a GPU followed by -1 for every possible further event. `node_x`: the row of
    each of `nodes`, -1 for those that have none.
    """
    num_in_blocks: int = 0
    """Number of leading rows of `edge_x` that the blocks read; on a GPU all, an upper bound."""
    own_row: Tensor | None = None
    """int64 `[B]`: the row of each of the batch's own events in `edge_x`."""

    def with_features(self, rows: Mapping[Feature, Tensor]) -> Batch:
        """Return the batch with features, float32 `[len(ids), x_dim]` per given table."""
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
        """Return the batch with the rows of all remaining tables, gathered on its device."""
        tables = [each for each in feature_inputs(graph) if each.name in self.ids]
        return self.with_features({each.name: each.gather(self) for each in tables})

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
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
        """Return the rows that a batch needs from the table."""
        with self.error_context():
            return self.table.gather(batch.ids[self.name])

    def gather_base(self, ids: Tensor) -> Tensor:
        """Return the rows of `base_ids`, on their device."""
        with self.error_context():
            return self.base_table.gather(ids)

    @contextmanager
    def error_context(self) -> Iterator[None]:
        """Add the table's name to errors, as a note."""
        try:
            yield
        except Exception as error:
            error.add_note(f"{self.name} ({self.table.placement})")
            raise

    @property
    def base_table(self) -> Table:
        """The table or cache behind row selections."""
        table = self.table
        while isinstance(table, RowView):
            table = table.table
        return table

    def base_ids(self, batch: PendingBatch) -> Tensor:
        """Return the ids, also -1, of a batch's rows in a cache behind the table."""
        ids, table = batch.ids[self.name], self.table
        while isinstance(table, RowView):
            ids, table = table.ids_of(ids), table.table
        return ids

    def trace(self, batch: PendingBatch) -> Tensor:
        """Return the distinct `base_ids`, without -1, in order of first appearance."""
        ids = self.base_ids(batch).cpu()
        return ids[ids >= 0] if self.name == "edge_x" else unique_events([ids])[0][1:]

    @property
    def is_in_reach_of_a_gpu(self) -> bool:
        """Whether kernels gather the rows by ids on a GPU without waiting for the host."""
        cache = cache_of(self.base_table)
        is_there = cache is None or cache.gpu is not None
        return is_there and self.table.placement in ("device", "uva")

    @property
    def planned_cache(self) -> CachedTable | None:
        """The cache in front of the table, if its policy is "belady"."""
        cache = cache_of(self.base_table)
        return cache if cache is not None and cache.policy == "belady" else None


def feature_inputs(graph: TemporalGraph) -> list[FeatureInput]:
    """Return the tables that batches of `graph` read."""
    named: dict[Feature, Table | None] = {"edge_x": graph.edge_x, "node_x": graph.node_x}
    return [FeatureInput(name, table) for name, table in named.items() if table is not None]


def check_unplanned(graph: TemporalGraph) -> None:
    """Raise ValueError if a feature cache needs known future accesses."""
    for table in feature_inputs(graph):
        if table.planned_cache is not None:
            raise ValueError(
                f'the cache of {table.name} has policy="belady", which plans for what comes next, '
                'and future accesses of a live stream are unknown; use policy="lru"'
            )
