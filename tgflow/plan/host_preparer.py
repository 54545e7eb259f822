"""Batches in host memory: each prepared in a slab by one call of the native core."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tgflow.graph.batch import Batch, Block
from tgflow.graph.host import HostGraph
from tgflow.graph.tables import FeatureTable
from tgflow.plan._native import Feature, FilledSlab, Slab, SlabColumns, SlabPool
from tgflow.plan.assemble import PendingBatch, feature_inputs
from tgflow.plan.draws import KEPT_SLABS, Draws


def host_preparer(draws: Draws, pool: SlabPool | None = None) -> HostPreparer | None:
    """Return the native preparer of a plan's batches; None where not supported."""
    graph = draws.graph
    if not isinstance(graph.backend, HostGraph) or graph.shard.world > 1:
        return None  # kernels sample on a GPU; shards query other ranks at every hop
    if callable(draws.sampler.strategy):
        return None  # the core calls no Python
    return HostPreparer(draws, SlabPool(KEPT_SLABS, None) if pool is None else pool)


class HostPreparer:
    """Prepares batches of a plan, or slices of them, in slabs; bit-identical to hop by hop."""

    def __init__(self, draws: Draws, pool: SlabPool) -> None:
        self._draws, self.pool = draws, pool

    def batch(self, epoch: int, index: int, number: int | None = None) -> Batch:
        """Return a batch of the plan, or a slice of it, in host memory."""
        tables = {each.name for each in feature_inputs(self._draws.graph)}
        filled = self.fill(epoch, index, tables, number)
        pending = self.view(filled, filled.memory, is_here=True)
        return pending.gathered(self._draws.graph) if pending.ids else pending.batch

    def pending(self, epoch: int, index: int, number: int | None = None) -> PendingBatch:
        """Return a batch of the plan, or a slice of it, before its features are read."""
        filled = self.fill(epoch, index, (), number)
        return self.view(filled, filled.memory, is_here=True)

    def fill(
        self,
        epoch: int,
        index: int,
        gathered: Collection[Feature],
        number: int | None = None,
        *,
        is_padded: bool = False,
    ) -> FilledSlab:
        """Prepare a batch, or slice `number` of it, in a slab.

        With the rows of `gathered` tables that are in memory.
        """

        def tables() -> dict[Feature, Tensor]:
            found: dict[Feature, Tensor] = {}
            for each in feature_inputs(self._draws.graph):
                if each.name in gathered and isinstance(each.table, FeatureTable):
                    with each.error_context():
                        rows = each.table.in_memory
                    if rows is not None:
                        found[each.name] = rows
            return found

        fill = partial(self._draws.fill, Slab(self.pool), epoch, index, number)
        return fill(tables=tables, is_padded=is_padded)

    def view(self, filled: FilledSlab, memory: Tensor, *, is_here: bool) -> PendingBatch:
        """Return the batch as views of `memory`, the slab or a copy of it on any device."""
        draws, at, host, piece = self._draws, filled.at, filled.host, SlabColumns(memory)
        num, m = at.num_events, draws.negatives.num
        src, dst, negative_src, negative_dst = piece.ends(at.ends, at, m)
        if at.row >= 0:
            src_row, dst_row, negative_src_row, negative_dst_row = piece.ends(at.row, at, m)
        else:  # no frontier
            src_row = dst_row = piece.column(0, 0)
            negative_src_row = negative_dst_row = piece.column(0, 0, m)
        events: dict[str, Any] = host.columns()
        if not is_here:
            events = {"eid": piece.column(at.eid, num), "t": piece.column(at.t, num)}
            events |= {"src": src, "dst": dst} | piece.added(filled)
        widths = {each.name: each.table.dim for each in feature_inputs(draws.graph)}
        edge_dim = widths.get("edge_x", 0)
        edge_table = piece.features(at.edge_x, at.num_in_blocks, edge_dim)
        blocks = tuple(
            Block(
                target=piece.column(of.target, of.targets),
                neighbor=piece.column(of.neighbor, of.targets, k),
                mask=piece.column(of.mask, of.targets, k, torch.bool),
                dt=piece.column(of.dt, of.targets, k, torch.float32),
                eid=piece.column(of.eid, of.targets, k),
                edge_row=None if of.edge_row < 0 else piece.column(of.edge_row, of.targets, k),
                edge_table=edge_table,
            )
            for of, k in zip(filled.blocks, draws.fanouts, strict=True)
        )
        batch = Batch(
            epoch=filled.epoch,
            index=filled.index,
            num_new=at.num_new,
            seconds_per_tick=draws.graph.seconds_per_tick,
            **events,
            host=host,
            x=piece.features(at.x, num, edge_dim),
            negative_src=negative_src,
            negative_dst=negative_dst,
            src_row=src_row,
            dst_row=dst_row,
            negative_src_row=negative_src_row,
            negative_dst_row=negative_dst_row,
            blocks=blocks,
            nodes=piece.column(at.nodes, at.num_nodes),
            position=piece.column(at.position, at.num_nodes if draws.with_nodes else num),
            since=draws.graph.horizon_at(host.begin),
            node_x=piece.features(at.node_x, at.num_nodes, widths.get("node_x", 0)),
            counts=draws.counts_of(at, piece),
            log_q=piece.features(at.log_q, num, m),
            num_fallbacks=at.num_fallbacks if filled.slice is None else 0,
            slice=filled.slice,
        )
        ids: dict[Feature, Tensor] = {}
        own_row = None
        if at.edge_ids >= 0:
            ids["edge_x"] = piece.column(at.edge_ids, at.num_edges)
            own_row = piece.column(at.own_row, num)
        if at.node_ids >= 0:
            ids["node_x"] = piece.column(at.node_ids, at.num_nodes)
        return PendingBatch(batch, ids, num_in_blocks=at.num_in_blocks, own_row=own_row)
