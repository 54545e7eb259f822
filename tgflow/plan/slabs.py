"""Batches by one call of the core each, without the GIL, in memory that is used again.

SALIENT (MLSys 2022) prepares batches by threads of C++ in shared memory: Python starts a batch and
finds it done. Here a call draws, samples and gathers a whole batch into a *slab*, one block of
memory that goes to another batch when the last tensor that views it is gone; once batches have had
their largest size, nothing is allocated any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from tgflow.batch import Batch, Block, HostEvents
from tgflow.graph._native import NATIVE_STRATEGIES
from tgflow.graph.host import HostGraph
from tgflow.keys import KeyDomain, derive_key
from tgflow.plan._native import Preparer, Slab, SlabPool
from tgflow.plan.inputs import feature_inputs
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.pending import Feature, PendingBatch
from tgflow.plan.slab_layout import BatchLayout, BatchPlaces, Piece
from tgflow.plan.spec import PlanSpec, for_each_negative
from tgflow.tables import FeatureTable
from tgflow.units import INT64_MAX

KEPT_SLABS = 8
"""That nobody uses: what a loader looks ahead, and a few threads and consumers have, at most."""


def slab_preparer_of(
    spec: PlanSpec, allocate: Callable[[int], Tensor] | None = None
) -> SlabPreparer | None:
    """Return what prepares batches of `spec` by one call each, None where the core cannot.

    This is the only place that says where it cannot.

    Args:
        spec: The plan.
        allocate: As `SlabPreparer` takes it.
    """
    graph, negatives = spec.graph, spec.negatives
    if not isinstance(graph.backend, HostGraph):
        return None  # kernels sample where the neighborhoods are
    if graph.shard.world > 1:
        return None  # other ranks are asked at every hop
    if not isinstance(negatives, NegativeSampler):
        return None  # they are drawn from elsewhere than the log
    return SlabPreparer(spec, graph.backend, negatives, allocate)


class SlabPreparer:
    """Prepares whole batches of a plan in slabs: the same to the bit as `Plan.batch` without them.

    Any number of threads may ask. Raises what `tgflow.Plan.batch` does.

    Args:
        spec: Of a graph in host memory; see `slab_preparer_of`.
        backend: Of that graph.
        negatives: Of the plan.
        allocate: Returns the bytes of a slab, as many as asked for, uint8; None: ordinary memory.
    """

    def __init__(
        self,
        spec: PlanSpec,
        backend: HostGraph,
        negatives: NegativeSampler,
        allocate: Callable[[int], Tensor] | None = None,
    ) -> None:
        self._spec, self._negatives = spec, negatives
        self.pool = SlabPool(KEPT_SLABS, allocate)
        """Of the slabs; says how many there are, and how often one was allocated."""
        self._native = Preparer(
            graph=backend.native,
            pairs=spec.pairs.upto(0).native,
            counts=spec.counts.native if spec.counts.asked else None,
            start=spec.start,
            batch_size=spec.batch_size,
            fanouts=list(spec.fanouts),
            strategy=NATIVE_STRATEGIES[spec.sampler.strategy],
            span=spec.sampler.span or 1,
            sees_all_before=spec.sees_all_before,
            with_memory=spec.with_memory,
            with_nodes=spec.with_nodes,
            seconds_per_tick=spec.graph.seconds_per_tick,
            num_negatives=negatives.num,
            draws_pairs=negatives.kind != "random",
            cut=-1 if negatives.cut is None else negatives.cut,
            pairs_from=negatives.pairs_from,
            collide=negatives.collide,
            replace=negatives.replace,
            half_life=1.0 if spec.replay is None else spec.replay.half_life,
        )

    def batch(self, epoch: int, index: int) -> Batch:
        """Return a batch of the plan, in host memory."""
        inputs = feature_inputs(self._spec.graph)
        pending = self._prepared(epoch, index, {each.name for each in inputs})
        elsewhere = [each for each in inputs if each.name in pending.ids]
        if not elsewhere:
            return pending.batch
        return pending.with_features({each.name: each.gather(pending) for each in elsewhere})

    def pending(self, epoch: int, index: int) -> PendingBatch:
        """Return a batch of the plan before its features are read."""
        return self._prepared(epoch, index, ())

    def _prepared(self, epoch: int, index: int, gathered: Collection[Feature]) -> PendingBatch:
        filled = self.fill(epoch, index, gathered)
        return filled.pending(self._spec, filled.memory, filled.host)

    def fill(
        self, epoch: int, index: int, gathered: Collection[Feature], *, is_padded: bool = False
    ) -> FilledSlab:
        """Prepare a batch in a slab.

        Args:
            epoch: Of the batch.
            index: Of the batch.
            gathered: Tables whose rows are gathered if they are in host memory; of all others the
                ids are written in place of them.
            is_padded: Whether its parts get the sizes of `tgflow.plan.padding`.
        """
        spec = self._spec
        begin, end = spec.span(index)
        key = derive_key(spec.seed, epoch, index)
        if spec.counts.asked:
            spec.counts.check_deletions()
        spec.pairs.upto(self._negatives.limit(end))
        only = None if spec.only is None else spec.only[index * spec.batch_size :]
        replay_begin, num_replay = begin, 0
        if spec.replay is not None:
            replay_begin, num_replay = spec.replay.begin(begin), spec.replay.num_events(end - begin)
        rows = self._rows(gathered)  # after the span: those of its events are there
        node_end = spec.graph.node_x_end
        slab = Slab(self.pool)
        numbers = self._native.prepare(
            slab,
            negatives_key=derive_key(key, KeyDomain.NEGATIVES),
            replay_key=derive_key(key, KeyDomain.REPLAY),
            hop_keys=[derive_key(key, KeyDomain.HOP + hop) for hop in range(len(spec.fanouts))],
            begin=begin,
            end=end,
            only=None if only is None else only[: spec.batch_size].contiguous(),
            replay_begin=replay_begin,
            num_replay=num_replay,
            reads_edges=spec.graph.edge_x is not None,
            edge_x=rows.get("edge_x"),
            reads_nodes=spec.graph.node_x is not None,
            node_x=rows.get("node_x"),
            node_end=INT64_MAX if node_end is None else node_end,
            is_padded=is_padded,
        )
        memory = torch.frombuffer(slab, dtype=torch.uint8)  # it and its views keep the slab
        layout = BatchLayout.of(numbers)
        spec.counts.took(layout.batch.counting_ns * 1e-9)
        return FilledSlab((epoch, index), layout, memory, begin, end)

    def _rows(self, names: Collection[Feature]) -> dict[Feature, Tensor]:
        """Return the rows of those of some tables that are in host memory, as views."""
        found: dict[Feature, Tensor] = {}
        for each in feature_inputs(self._spec.graph):
            if each.name not in names:
                continue
            with each.error_context():
                table = each.table
                rows = table.in_memory if isinstance(table, FeatureTable) else None
            if rows is not None:
                found[each.name] = rows
        return found


class FilledSlab:
    """A slab with a batch of a plan in it.

    Args:
        task: Epoch and index of the batch.
        layout: Where its parts are.
        memory: All that was written, uint8.
        begin: Log position of the first new event.
        end: Log position after the last one.
    """

    def __init__(
        self, task: tuple[int, int], layout: BatchLayout, memory: Tensor, begin: int, end: int
    ) -> None:
        self.memory = memory
        self._task, self._layout = task, layout
        at = layout.batch
        num = at.num_events
        # a copy: events are kept longer than their batch, and would keep its slab
        ends = memory[: at.ends + 16 * num].view(torch.int64).clone()
        eid, t, src = (ends[place // 8 :][:num] for place in (at.eid, at.t, at.ends))
        self.host = HostEvents(eid, src, ends[at.ends // 8 + num :], t, begin, end)
        """The batch's events."""

    @property
    def named(self) -> set[Feature]:
        """The tables whose rows are not in the slab, but their ids."""
        at = self._layout.batch
        named: set[Feature] = {"edge_x"} if at.edge_ids >= 0 else set()
        return named | {"node_x"} if at.node_ids >= 0 else named

    def pending(self, spec: PlanSpec, memory: Tensor, host: HostEvents | None) -> PendingBatch:
        """Return the batch, whose tensors are views of `memory`, before further features are read.

        Args:
            spec: Of the plan.
            memory: The slab's, or a copy of it on any device.
            host: Its columns are the batch's own, too; None: those are views as well.
        """
        at, piece, (epoch, index) = self._layout.batch, Piece(memory), self._task
        num, m = at.num_events, spec.negatives.num
        src, dst, negative_src, negative_dst = _ends(piece, at.ends, at, m)
        src_row, dst_row, negative_src_row, negative_dst_row = _rows_of_ends(piece, at, m)
        eid, t = piece.words(at.eid, num), piece.words(at.t, num)
        if host is not None:
            eid, src, dst, t = host.eid, host.src, host.dst, host.t
        num_positions = at.num_nodes if spec.with_nodes else num
        num_counts = spec.counts.num_rows * num * (1 + m)
        widths = {each.name: each.table.dim for each in feature_inputs(spec.graph)}
        batch = Batch(
            epoch=epoch,
            index=index,
            num_new=at.num_new,
            seconds_per_tick=spec.graph.seconds_per_tick,
            eid=eid,
            src=src,
            dst=dst,
            t=t,
            host=self.host,
            x=_rows(piece, at.x, num, widths.get("edge_x", 0)),
            negative_src=negative_src,
            negative_dst=negative_dst,
            src_row=src_row,
            dst_row=dst_row,
            negative_src_row=negative_src_row,
            negative_dst_row=negative_dst_row,
            blocks=self._blocks(piece, spec.fanouts, widths.get("edge_x", 0)),
            nodes=piece.words(at.nodes, at.num_nodes),
            position=piece.words(at.position, num_positions),
            node_x=_rows(piece, at.node_x, at.num_nodes, widths.get("node_x", 0)),
            counts=spec.counts.read(piece.words(max(at.counts, 0), num_counts), 1 + m),
            num_fallbacks=at.num_fallbacks,
        )
        ids: dict[Feature, Tensor] = {}
        if "edge_x" in self.named:
            ids["edge_x"] = piece.words(at.edge_ids, at.num_edges)
        if "node_x" in self.named:
            ids["node_x"] = piece.words(at.node_ids, at.num_nodes)
        own_row = piece.words(at.own_row, num) if "edge_x" in self.named else None
        return PendingBatch(batch, ids, num_in_blocks=at.num_in_blocks, own_row=own_row)

    def _blocks(self, piece: Piece, fanouts: Sequence[int], width: int) -> tuple[Block, ...]:
        at = self._layout.batch
        table = _rows(piece, at.edge_x, at.num_in_blocks, width)
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
            for of, k in zip(self._layout.blocks, fanouts, strict=True)
        )


def _rows(piece: Piece, place: int, rows: int, width: int) -> Tensor | None:
    """Return features, None where the slab has none."""
    return None if place < 0 else piece.floats(place, rows, width)


def _rows_of_ends(piece: Piece, at: BatchPlaces, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the rows of the queries by ends; none of a batch without a frontier."""
    if at.row >= 0:
        return _ends(piece, at.row, at, m)
    row, rows = piece.words(0, 0), piece.words(0, 0, m)
    return row, row, rows, rows


def _ends(
    piece: Piece, place: int, at: BatchPlaces, m: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a column of the queries by ends: sources, destinations and those of negatives."""
    num = at.num_events
    src, dst = piece.words(place, num), piece.words(place + 8 * num, num)
    negative_dst = piece.words(place + 16 * num, num, m)
    if at.num_queries == num * (2 + m):
        return src, dst, for_each_negative(src, m), negative_dst
    return src, dst, piece.words(place + 8 * num * (2 + m), num, m), negative_dst
