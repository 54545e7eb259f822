"""Whole batches in host memory by one call of the native core each, in slabs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tgflow.batch import Batch, Block, HostEvents
from tgflow.graph._native import NATIVE_STRATEGIES
from tgflow.graph.host import HostGraph
from tgflow.keys import KeyDomain, derive_key
from tgflow.plan._native import Preparer, Slab, SlabPool
from tgflow.plan.assembly import Feature, PendingBatch, feature_inputs, for_each_negative
from tgflow.plan.negatives import NegativeSampler
from tgflow.tables import FeatureTable
from tgflow.units import INT64_MAX

if TYPE_CHECKING:
    from tgflow.plan.plan import Plan


class BlockPlaces(NamedTuple):
    """Where the columns of a `Block` are, in bytes; -1: it has none."""

    targets: int
    """Its rows, padding included."""
    target: int
    neighbor: int
    mask: int
    dt: int
    eid: int
    edge_row: int


class BatchPlaces(NamedTuple):
    """Where the columns of a batch are, in bytes, and how long they are; -1: it has none."""

    num_events: int
    num_new: int
    num_queries: int
    num_fallbacks: int
    eid: int
    t: int
    ends: int
    """Sources, destinations, negatives' destinations and, if they have their own, sources."""
    row: int
    """Of each of those, in the top frontier."""
    counts: int
    num_nodes: int
    nodes: int
    position: int
    num_edges: int
    """Rows of the edge table, padding included; how many of them the blocks read."""
    num_in_blocks: int
    own_row: int
    edge_ids: int
    """Of the edge table, where its rows are gathered by others."""
    edge_x: int
    x: int
    node_ids: int
    node_x: int
    counting_ns: int
    """No place: of the thread, for which it counted the past."""

    @property
    def named(self) -> set[Feature]:
        """The tables whose rows are not in the slab, but their ids."""
        named: set[Feature] = {"edge_x"} if self.edge_ids >= 0 else set()
        return named | {"node_x"} if self.node_ids >= 0 else named


@dataclass(frozen=True, slots=True, eq=False)
class FilledSlab:
    """A slab with a batch of a plan in it."""

    epoch: int
    index: int
    memory: Tensor
    """All that was written, uint8."""
    host: HostEvents
    """The batch's events: a copy."""
    at: BatchPlaces
    blocks: list[BlockPlaces]


class _Piece:
    """A piece of memory, uint8, seen as values of each type that batches have."""

    def __init__(self, memory: Tensor) -> None:
        self._words = memory.view(torch.int64)
        self._floats = memory.view(torch.float32)
        self._flags = memory.view(torch.bool)

    def words(self, place: int, rows: int, width: int | None = None) -> Tensor:
        """Return int64 `[rows]` or `[rows, width]` from byte `place` on, as a view."""
        if width is None:
            return self._words.as_strided((rows,), (1,), place // 8)
        return self._words.as_strided((rows, width), (width, 1), place // 8)

    def floats(self, place: int, rows: int, width: int) -> Tensor:
        """Return float32 `[rows, width]` from byte `place` on, as a view."""
        return self._floats.as_strided((rows, width), (width, 1), place // 4)

    def features(self, place: int, rows: int, width: int) -> Tensor | None:
        """As `floats`; None where there are none."""
        return None if place < 0 else self.floats(place, rows, width)

    def flags(self, place: int, rows: int, width: int) -> Tensor:
        """Return bool `[rows, width]` from byte `place` on, as a view."""
        return self._flags.as_strided((rows, width), (width, 1), place)

    def ends(self, place: int, at: BatchPlaces, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return a column of sources, destinations, negatives' sources and destinations."""
        num = at.num_events
        src, dst = self.words(place, num), self.words(place + 8 * num, num)
        negative_dst = self.words(place + 16 * num, num, m)
        if at.num_queries == num * (2 + m):
            return src, dst, for_each_negative(src, m), negative_dst
        return src, dst, self.words(place + 8 * num * (2 + m), num, m), negative_dst


KEPT_SLABS = 8
"""Unused slabs that are kept: what a loader looks ahead, and a few threads and consumers hold."""


def host_preparer(
    plan: Plan, allocate: Callable[[int], Tensor] | None = None
) -> HostPreparer | None:
    """Return what prepares batches of `plan` by one call each, None where the core cannot."""
    graph, negatives = plan.graph, plan.negatives
    if not isinstance(graph.backend, HostGraph) or graph.shard.world > 1:
        return None  # kernels sample where neighborhoods are; other ranks are asked at every hop
    if not isinstance(negatives, NegativeSampler) or callable(plan.sampler.strategy):
        return None  # negatives from elsewhere than the log; the core calls no Python
    return HostPreparer(plan, graph.backend, negatives, allocate)


class HostPreparer:
    """Prepares whole batches of a plan in slabs: the same to the bit as hop by hop."""

    def __init__(
        self,
        plan: Plan,
        backend: HostGraph,
        negatives: NegativeSampler,
        allocate: Callable[[int], Tensor] | None = None,
    ) -> None:
        self._plan, self._negatives = plan, negatives
        self.pool = SlabPool(KEPT_SLABS, allocate)
        """Of the slabs; has counts of them and of their allocations."""
        self._native = Preparer(
            graph=backend.native,
            pairs=plan.pairs.upto(0).native,
            counts=plan.counts.native if plan.counts.asked else None,
            start=plan.start,
            batch_size=plan.batch_size,
            fanouts=list(plan.fanouts),
            strategy=NATIVE_STRATEGIES[plan.sampler.native_strategy],
            span=plan.sampler.span or 1,
            sees_all_before=plan.sees_all_before,
            with_memory=plan.with_memory,
            with_nodes=plan.with_nodes,
            seconds_per_tick=plan.graph.seconds_per_tick,
            num_negatives=negatives.num,
            draws_pairs=negatives.kind != "random",
            cut=-1 if negatives.cut is None else negatives.cut,
            pairs_from=negatives.pairs_from,
            collide=negatives.collide,
            replace=negatives.replace,
            half_life=1.0 if plan.replay is None else plan.replay.half_life,
        )

    def batch(self, epoch: int, index: int) -> Batch:
        """Return a batch of the plan, in host memory."""
        tables = {each.name for each in feature_inputs(self._plan.graph)}
        filled = self.fill(epoch, index, tables)
        pending = self.view(filled, filled.memory, is_here=True)
        return pending.gathered(self._plan.graph) if pending.ids else pending.batch

    def pending(self, epoch: int, index: int) -> PendingBatch:
        """Return a batch of the plan before its features are read."""
        filled = self.fill(epoch, index, ())
        return self.view(filled, filled.memory, is_here=True)

    def fill(
        self, epoch: int, index: int, gathered: Collection[Feature], *, is_padded: bool = False
    ) -> FilledSlab:
        """Prepare a batch in a slab."""
        plan, graph = self._plan, self._plan.graph
        begin, end = plan.span(index)
        key = derive_key(plan.seed, epoch, index)
        if plan.counts.asked:
            plan.counts.check_deletions()
        plan.pairs.upto(self._negatives.limit(end))
        only = None if plan.only is None else plan.only[index * plan.batch_size :]
        replay_begin, num_replay = begin, 0
        if plan.replay is not None:
            replay_begin, num_replay = plan.replay.begin(begin), plan.replay.num_events(end - begin)
        rows = self._rows(gathered)  # after the span: those of its events are there
        node_end = graph.node_x_end
        slab = Slab(self.pool)
        numbers = self._native.prepare(
            slab,
            negatives_key=derive_key(key, KeyDomain.NEGATIVES),
            replay_key=derive_key(key, KeyDomain.REPLAY),
            hop_keys=[derive_key(key, KeyDomain.HOP + hop) for hop in range(len(plan.fanouts))],
            begin=begin,
            end=end,
            only=None if only is None else only[: plan.batch_size].contiguous(),
            replay_begin=replay_begin,
            num_replay=num_replay,
            reads_edges=graph.edge_x is not None,
            edge_x=rows.get("edge_x"),
            reads_nodes=graph.node_x is not None,
            node_x=rows.get("node_x"),
            node_end=INT64_MAX if node_end is None else node_end,
            is_padded=is_padded,
        )
        memory = torch.frombuffer(slab, dtype=torch.uint8)  # it and its views keep the slab
        size, step = len(BatchPlaces._fields), len(BlockPlaces._fields)
        at = BatchPlaces(*numbers[:size])
        starts = range(size, len(numbers), step)
        blocks = [BlockPlaces(*numbers[start : start + step]) for start in starts]
        num = at.num_events
        # a copy: events are kept longer than their batch, and would keep its slab
        ends = memory[: at.ends + 16 * num].view(torch.int64).clone()
        eid, t, src = (ends[place // 8 :][:num] for place in (at.eid, at.t, at.ends))
        dst, weight = ends[at.ends // 8 + num :], graph.log.column("weight", eid)
        host = HostEvents(eid, src, dst, t, begin, end, weight=weight)
        return FilledSlab(epoch, index, memory, host, at, blocks)

    def _rows(self, names: Collection[Feature]) -> dict[Feature, Tensor]:
        """Return the rows of those of some tables that are in host memory, as views."""
        found: dict[Feature, Tensor] = {}
        for each in feature_inputs(self._plan.graph):
            if each.name not in names:
                continue
            with each.error_context():
                table = each.table
                rows = table.in_memory if isinstance(table, FeatureTable) else None
            if rows is not None:
                found[each.name] = rows
        return found

    def view(self, filled: FilledSlab, memory: Tensor, *, is_here: bool) -> PendingBatch:
        """Return the batch as views of `memory`, the slab or a copy of it on any device."""
        plan, at, piece, host = self._plan, filled.at, _Piece(memory), filled.host
        num, m = at.num_events, plan.negatives.num
        src, dst, negative_src, negative_dst = piece.ends(at.ends, at, m)
        if at.row >= 0:
            src_row, dst_row, negative_src_row, negative_dst_row = piece.ends(at.row, at, m)
        else:  # no frontier
            src_row = dst_row = piece.words(0, 0)
            negative_src_row = negative_dst_row = piece.words(0, 0, m)
        eid, t = piece.words(at.eid, num), piece.words(at.t, num)
        if is_here:
            eid, src, dst, t = host.eid, host.src, host.dst, host.t
        num_counts = plan.counts.num_rows * num * (1 + m)
        widths = {each.name: each.table.dim for each in feature_inputs(plan.graph)}
        edge_dim = widths.get("edge_x", 0)
        batch = Batch(
            epoch=filled.epoch,
            index=filled.index,
            num_new=at.num_new,
            seconds_per_tick=plan.graph.seconds_per_tick,
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
            blocks=_blocks(filled, piece, plan.fanouts, edge_dim),
            nodes=piece.words(at.nodes, at.num_nodes),
            position=piece.words(at.position, at.num_nodes if plan.with_nodes else num),
            node_x=piece.features(at.node_x, at.num_nodes, widths.get("node_x", 0)),
            counts=plan.counts.read(piece.words(max(at.counts, 0), num_counts), 1 + m),
            num_fallbacks=at.num_fallbacks,
        )
        ids: dict[Feature, Tensor] = {}
        own_row = None
        if "edge_x" in at.named:
            ids["edge_x"] = piece.words(at.edge_ids, at.num_edges)
            own_row = piece.words(at.own_row, num)
        if "node_x" in at.named:
            ids["node_x"] = piece.words(at.node_ids, at.num_nodes)
        return PendingBatch(batch, ids, num_in_blocks=at.num_in_blocks, own_row=own_row)


def _blocks(
    filled: FilledSlab, piece: _Piece, fanouts: Sequence[int], width: int
) -> tuple[Block, ...]:
    table = piece.features(filled.at.edge_x, filled.at.num_in_blocks, width)
    return tuple(
        Block(
            target=piece.words(of.target, of.targets),
            neighbor=piece.words(of.neighbor, of.targets, k),
            mask=piece.flags(of.mask, of.targets, k),
            dt=piece.floats(of.dt, of.targets, k),
            eid=piece.words(of.eid, of.targets, k),
            edge_row=None if of.edge_row < 0 else piece.words(of.edge_row, of.targets, k),
            edge_table=table,
        )
        for of, k in zip(filled.blocks, fanouts, strict=True)
    )
