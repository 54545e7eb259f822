"""Batches in host memory: each prepared in a slab by one call of the native core."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.base.keys import KeyDomain, derive_key
from tgflow.base.units import INT64_MAX
from tgflow.graph._native import NATIVE_STRATEGIES
from tgflow.graph.batch import Batch, BatchSlice, Block, HostEvents
from tgflow.graph.host import HostGraph
from tgflow.graph.log import BySince
from tgflow.graph.tables import FeatureTable
from tgflow.plan._native import Preparer, Slab, SlabPool
from tgflow.plan.assemble import Feature, PendingBatch, feature_inputs
from tgflow.plan.draws import Draws, for_each_negative
from tgflow.plan.negatives import NegativeSampler, PairHistory


class BlockPlaces(NamedTuple):
    """Byte offsets of the columns of a `Block` in a slab; -1: no such column."""

    targets: int
    """Its rows, padding included."""
    target: int
    neighbor: int
    mask: int
    dt: int
    eid: int
    edge_row: int


class BatchPlaces(NamedTuple):
    """Byte offsets and row counts of a batch's columns in a slab; -1: no such column."""

    num_whole: int
    whole_eid: int
    whole_t: int
    whole_ends: int
    """Events of the whole batch, if this is a slice of it; else those below."""
    num_events: int
    num_new: int
    num_queries: int
    num_fallbacks: int
    """Fallbacks among the negatives of the whole batch."""
    eid: int
    t: int
    ends: int
    """Sources, destinations, negatives' destinations and, if they have their own, sources."""
    row: int
    """Row of each of those in the top frontier."""
    counts: int
    num_nodes: int
    nodes: int
    position: int
    num_edges: int
    """Rows of the edge table, padding included; number of them that the blocks read."""
    num_in_blocks: int
    own_row: int
    edge_ids: int
    """Ids of the edge table, where its rows are gathered separately."""
    edge_x: int
    x: int
    node_ids: int
    node_x: int

    @property
    def named(self) -> set[Feature]:
        """The tables of which the slab holds ids instead of rows."""
        named: set[Feature] = {"edge_x"} if self.edge_ids >= 0 else set()
        return named | {"node_x"} if self.node_ids >= 0 else named


@dataclass(frozen=True, slots=True, eq=False)
class FilledSlab:
    """A slab that holds a batch."""

    epoch: int
    index: int
    memory: Tensor
    """All bytes written, uint8."""
    host: HostEvents
    """The batch's events: a copy."""
    slice: BatchSlice | None
    at: BatchPlaces
    blocks: list[BlockPlaces]


class _Piece:
    """A buffer, uint8, whose views are columns."""

    def __init__(self, memory: Tensor) -> None:
        types = torch.int64, torch.float32, torch.float64, torch.bool
        self._typed = {dtype: memory.view(dtype) for dtype in types}

    def column(
        self, place: int, rows: int, width: int | None = None, dtype: torch.dtype = torch.int64
    ) -> Tensor:
        """Return `[rows]` or `[rows, width]` at byte `place`."""
        typed = self._typed[dtype]
        start = place // typed.element_size()
        if width is None:
            return typed.as_strided((rows,), (1,), start)
        return typed.as_strided((rows, width), (width, 1), start)

    def features(self, place: int, rows: int, width: int) -> Tensor | None:
        """Return float32 `[rows, width]` at byte `place`; None where there are none."""
        return None if place < 0 else self.column(place, rows, width, torch.float32)

    def ends(self, place: int, at: BatchPlaces, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return a column of sources, destinations, negatives' sources and destinations."""
        num = at.num_events
        src, dst = self.column(place, num), self.column(place + 8 * num, num)
        negative_dst = self.column(place + 16 * num, num, m)
        if at.num_queries == num * (2 + m):
            return src, dst, for_each_negative(src, m), negative_dst
        return src, dst, self.column(place + 8 * num * (2 + m), num, m), negative_dst


KEPT_SLABS = 8
"""Most unused slabs kept: enough for a loader's lookahead, some threads and consumers."""


def host_preparer(
    draws: Draws, allocate: Callable[[int], Tensor] | None = None
) -> HostPreparer | None:
    """Return the native preparer of a plan's batches; None where not supported."""
    graph, negatives = draws.graph, draws.negatives
    if not isinstance(graph.backend, HostGraph) or graph.shard.world > 1:
        return None  # kernels sample on a GPU; shards query other ranks at every hop
    if not isinstance(negatives, NegativeSampler) or not negatives.single_kind:
        return None  # negatives of several kinds, of lists, or from outside the log
    if callable(draws.sampler.strategy):
        return None  # the core calls no Python
    return HostPreparer(draws, graph.backend, negatives, allocate)


class HostPreparer:
    """Prepares batches of a plan, or slices of them, in slabs; bit-identical to hop by hop."""

    def __init__(
        self,
        draws: Draws,
        backend: HostGraph,
        negatives: NegativeSampler,
        allocate: Callable[[int], Tensor] | None = None,
    ) -> None:
        self._draws, self._negatives = draws, negatives
        self.pool = SlabPool(KEPT_SLABS, allocate)
        """Pool of the slabs; counts them."""
        self._within = BySince(partial(_preparer, draws, backend, negatives))

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
        draws, graph = self._draws, self._draws.graph
        begin, end = draws.span(index)
        since = graph.since(begin)
        key = derive_key(draws.seed, epoch, index)
        if draws.counts.asked:
            draws.counts.check_deletions()
        negatives = self._negatives
        pairs, native = self._within.at(since)
        if negatives.draws_pairs:
            pairs.upto(end, pairs=True)
        else:
            pairs.upto(negatives.limit(end))
        mask = negatives.mask(begin, end, negatives.num)
        only = None if draws.only is None else draws.only[index * draws.batch_size :]
        replay_begin, num_replay = begin, 0
        if draws.replay is not None:
            replay_begin, num_replay = (
                draws.replay.begin(begin, since),
                draws.replay.num_events(end - begin),
            )
        num_new = end - begin if only is None else min(draws.batch_size, len(only))
        rows = draws.rows_of_slice(number, num_new, num_new + min(num_replay, begin - replay_begin))
        own_key = key
        if rows is not None and number is not None:
            own_key = derive_key(key, KeyDomain.SLICE, number)
        tables: dict[Feature, Tensor | None] = {}  # after the span: rows of its events exist
        for each in feature_inputs(graph):
            if each.name in gathered and isinstance(each.table, FeatureTable):
                with each.error_context():
                    tables[each.name] = each.table.in_memory
        node_end = graph.node_x_end
        slab = Slab(self.pool)
        numbers = native.prepare(
            slab,
            negatives_key=derive_key(key, KeyDomain.NEGATIVES),
            replay_key=derive_key(key, KeyDomain.REPLAY),
            negative_mask=mask,
            hop_keys=[
                derive_key(own_key, KeyDomain.HOP + hop) for hop in range(len(draws.fanouts))
            ],
            begin=begin,
            end=end,
            since=since,
            only=None if only is None else only[: draws.batch_size].contiguous(),
            replay_begin=replay_begin,
            num_replay=num_replay,
            reads_edges=graph.edge_x is not None,
            edge_x=tables.get("edge_x"),
            reads_nodes=graph.node_x is not None,
            node_x=tables.get("node_x"),
            node_end=INT64_MAX if node_end is None else node_end,
            is_padded=is_padded,
            rows=rows,
        )
        memory = torch.frombuffer(slab, dtype=torch.uint8)  # it and its views keep the slab alive
        size, step = len(BatchPlaces._fields), len(BlockPlaces._fields)
        at = BatchPlaces(*numbers[:size])
        starts = range(size, len(numbers), step)
        blocks = [BlockPlaces(*numbers[start : start + step]) for start in starts]
        num = at.num_whole
        # a copy: events outlive their batch, and would keep its slab alive
        ends = memory[: at.whole_ends + 16 * num].view(torch.int64).clone()
        places = at.whole_eid, at.whole_t, at.whole_ends, at.whole_ends + 8 * num
        eid, t, src, dst = (ends[place // 8 :][:num] for place in places)
        weight, relation = (graph.log.column(name, eid) for name in ("weight", "relation"))
        host, of = HostEvents(eid, src, dst, t, begin, end, mask, weight, relation), None
        if rows is not None and number is not None:
            of = BatchSlice(number, draws.slices, num_new, at.num_fallbacks, host)
            host = host.part(rows)
        return FilledSlab(epoch, index, memory, host, of, at, blocks)

    def view(self, filled: FilledSlab, memory: Tensor, *, is_here: bool) -> PendingBatch:
        """Return the batch as views of `memory`, the slab or a copy of it on any device."""
        draws, at, host = self._draws, filled.at, filled.host
        piece = _Piece(memory)
        num, m = at.num_events, draws.negatives.num
        src, dst, negative_src, negative_dst = piece.ends(at.ends, at, m)
        if at.row >= 0:
            src_row, dst_row, negative_src_row, negative_dst_row = piece.ends(at.row, at, m)
        else:  # no frontier
            src_row = dst_row = piece.column(0, 0)
            negative_src_row = negative_dst_row = piece.column(0, 0, m)
        eid, t = piece.column(at.eid, num), piece.column(at.t, num)
        if is_here:
            eid, src, dst, t = host.eid, host.src, host.dst, host.t
        counts, num_counts = None, len(draws.counts.asked)
        if num_counts:
            counts = piece.column(at.counts, num * (1 + m), num_counts, torch.float64)
            counts = counts.view(num, 1 + m, num_counts)
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
            eid=eid,
            src=src,
            dst=dst,
            t=t,
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
            counts=counts,
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


def _preparer(
    draws: Draws, backend: HostGraph, negatives: NegativeSampler, since: int
) -> tuple[PairHistory, Preparer]:
    """Return the pairs within a horizon, and what prepares the batches that see it."""
    pairs = draws.pairs.at(since)
    return pairs, Preparer(
        graph=backend.native,
        pairs=pairs.native,
        counts=draws.counts.at(since).native if draws.counts.asked else None,
        start=draws.start,
        batch_size=draws.batch_size,
        fanouts=list(draws.fanouts),
        strategy=NATIVE_STRATEGIES[draws.sampler.native_strategy],
        span=draws.sampler.span or 1,
        sees_all_before=draws.sees_all_before,
        with_memory=draws.with_memory,
        with_nodes=draws.with_nodes,
        seconds_per_tick=draws.graph.seconds_per_tick,
        num_negatives=negatives.num,
        draws_pairs=negatives.draws_pairs,
        cut=-1 if negatives.cut is None or negatives.draws_pairs else negatives.cut,
        pairs_from=negatives.since or 0 if negatives.inductive else 0,
        collide=negatives.collide,
        replace=negatives.replace,
        half_life=1.0 if draws.replay is None else draws.replay.half_life,
    )
