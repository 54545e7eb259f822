"""A prepared batch as one piece of memory: where its parts are, and views of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.batch import Batch, Block, HostEvents
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import Device, StreamEvent
from tgflow.cuda.pinned import PinnedPool
from tgflow.graph._native import NATIVE_STRATEGIES
from tgflow.graph.host import HostGraph
from tgflow.graph.log import EventLog
from tgflow.keys import KeyDomain, derive_key
from tgflow.plan._native import Preparer, Slab, SlabPool
from tgflow.plan.assembly import RootColumns, assemble_batch, with_features
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.padding import Padding, paddings, shape_of
from tgflow.plan.pending import Feature, FeatureInput, PendingBatch, feature_inputs
from tgflow.plan.spec import PlanSpec, Roots, for_each_negative
from tgflow.tables import FeatureTable
from tgflow.tables.row_view import RowView
from tgflow.units import INT64_MAX


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


class BatchLayout(NamedTuple):
    """Where all of a batch is in a piece of memory."""

    batch: BatchPlaces
    blocks: tuple[BlockPlaces, ...]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> BatchLayout:
        """Return the layout that the core gives as numbers."""
        begin, step = len(BatchPlaces._fields), len(BlockPlaces._fields)
        starts = range(begin, len(numbers), step)
        blocks = tuple(BlockPlaces(*numbers[start : start + step]) for start in starts)
        return cls(BatchPlaces(*numbers[:begin]), blocks)


class Piece:
    """A piece of memory, seen as values of each type that batches have.

    Args:
        memory: uint8 `[N]`, from the beginning of its storage on; `N` is a multiple of 8.
    """

    def __init__(self, memory: Tensor) -> None:
        self._words = memory.view(torch.int64)
        self._floats = memory.view(torch.float32)
        self._flags = memory.view(torch.bool)

    def words(self, place: int, rows: int, width: int | None = None) -> Tensor:
        """Return int64 `[rows]` or `[rows, width]` from byte `place` on, as a view."""
        return _view(self._words, place // 8, rows, width)

    def floats(self, place: int, rows: int, width: int) -> Tensor:
        """Return float32 `[rows, width]` from byte `place` on, as a view."""
        return _view(self._floats, place // 4, rows, width)

    def flags(self, place: int, rows: int, width: int) -> Tensor:
        """Return bool `[rows, width]` from byte `place` on, as a view."""
        return _view(self._flags, place, rows, width)


def _view(values: Tensor, first: int, rows: int, width: int | None) -> Tensor:
    if width is None:
        return values.as_strided((rows,), (1,), first)
    return values.as_strided((rows, width), (width, 1), first)


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
    if callable(spec.sampler.strategy):
        return None  # the core calls no Python
    return SlabPreparer(spec, graph.backend, negatives, allocate)


class HostPreparer:
    """Prepares batches in host memory, by the core."""

    def __init__(self, spec: PlanSpec) -> None:
        self._spec = spec

    def pending(self, roots: Roots) -> PendingBatch:
        """Return the batch of what was drawn before its features are read."""
        return assemble_batch(self._spec, roots, self.columns(roots))

    def columns(self, roots: Roots) -> RootColumns:
        """Return the columns as they are."""
        return RootColumns.on_host(roots)

    def of_roots(self, roots: Roots) -> Batch:
        """Return the batch of what was drawn, in host memory."""
        return with_features(self._spec, self.pending(roots))


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
            strategy=NATIVE_STRATEGIES[spec.sampler.native_strategy],
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
        return FilledSlab((epoch, index), layout, memory, begin, end, spec.graph.log)

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
        log: Has the weights of the events.
    """

    def __init__(
        self,
        task: tuple[int, int],
        layout: BatchLayout,
        memory: Tensor,
        begin: int,
        end: int,
        log: EventLog,
    ) -> None:
        self.memory = memory
        self._task, self._layout = task, layout
        at = layout.batch
        num = at.num_events
        # a copy: events are kept longer than their batch, and would keep its slab
        ends = memory[: at.ends + 16 * num].view(torch.int64).clone()
        eid, t, src = (ends[place // 8 :][:num] for place in (at.eid, at.t, at.ends))
        dst, weight = ends[at.ends // 8 + num :], log.weight(eid)
        self.host = HostEvents(eid, src, dst, t, begin, end, weight=weight)
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


_ALIGNMENT = 256
"""Of columns, in bytes: that of whatever torch allocates itself."""


class PinnedCopies:
    """Copies columns of the host to a GPU: one piece, by one copy on the current stream.

    Any number of threads may copy.

    Args:
        gpu: Where to.
        clock: Of what the stream does.
    """

    def __init__(self, gpu: Device, clock: WorkClock) -> None:
        self._gpu, self._clock = gpu, clock
        self._pinned = PinnedPool(gpu)

    def of(
        self, columns: Sequence[Tensor], longer: Mapping[int, Padding] | None = None
    ) -> dict[int, Tensor]:
        """Return copies on the GPU by the `id` of each column, contiguous; does not synchronize.

        Args:
            columns: In host memory.
            longer: By the `id` of a column, what it gets behind its rows.
        """
        longer = {} if longer is None else longer
        places, size = _laid_out(columns, longer)
        with self._pinned.lend(size) as room:
            for column, place in zip(columns, places, strict=True):
                # numpy copies on this thread alone, where torch would start threads beside it
                part = place.part_of(room).numpy()
                part[: len(column)] = column.numpy()
                if id(column) in longer:
                    part[len(column) :] = longer[id(column)].fill
            with self._clock.measuring():
                there = self._gpu.copy_from_host(room)
        pairs = zip(columns, places, strict=True)
        return {id(column): place.part_of(there) for column, place in pairs}

    def of_batch(self, batch: Batch) -> Batch:
        """Return a copy of a batch, with padding up to a size; does not synchronize."""
        copies = self.of(batch.tensors(), paddings(batch, shape_of(batch).rounded()))
        return batch.map(lambda column: copies[id(column)])


class _Place(NamedTuple):
    """Where a column is in a piece of memory."""

    begin: int
    num_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def part_of(self, piece: Tensor) -> Tensor:
        """Return the column in `piece`, uint8."""
        part = piece[self.begin : self.begin + self.num_bytes]
        return part.view(self.dtype).view(self.shape)


def _laid_out(columns: Sequence[Tensor], longer: Mapping[int, Padding]) -> tuple[list[_Place], int]:
    """Return the place of each column, one behind the other, and how many bytes all take."""
    shapes = [
        (longer[id(column)].rows if id(column) in longer else len(column), *column.shape[1:])
        for column in columns
    ]
    bytes_ = [c.element_size() * prod(shape) for c, shape in zip(columns, shapes, strict=True)]
    begins = [0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in bytes_)]
    end = begins.pop()
    dtypes = [column.dtype for column in columns]
    return [*map(_Place, begins, bytes_, dtypes, shapes)], end


class CopyingPreparer:
    """Prepares batches in host memory and copies them to a GPU, on the current stream.

    Features that the GPU can read where they are it gathers itself, by the ids that the host found;
    all others are gathered by the host.

    Args:
        spec: Of a graph in host memory.
        gpu: Where to.
        clock: Of what the stream does.
    """

    def __init__(self, spec: PlanSpec, gpu: Device, clock: WorkClock) -> None:
        self._host, self._clock = HostPreparer(spec), clock
        self._copies = PinnedCopies(gpu, clock)
        inputs = feature_inputs(spec.graph)
        self._there = [table for table in inputs if table.is_in_reach_of_a_gpu]
        self._here = [table for table in inputs if not table.is_in_reach_of_a_gpu]

    def of_roots(self, roots: Roots) -> Batch:
        """Return the batch of what was drawn, on the GPU.

        The host waits for features that it gathers, and nothing else.

        Raises:
            OSError: As `tgflow.Plan.batch`, as all errors.
        """
        return self.of_pending(self._host.pending(roots))

    def of_pending(self, pending: PendingBatch) -> Batch:
        """Return a batch of the host on the GPU, as `of_roots`."""
        return self._completed(self._copied(pending))

    def _copied(self, pending: PendingBatch) -> PendingBatch:
        """Return the batch on the GPU, with the features that the host gathers."""
        batch = pending.with_features({each.name: each.gather(pending) for each in self._here})
        ids = {each.name: each.base_ids(pending) for each in self._there}
        own_row = [] if pending.own_row is None else [pending.own_row]
        longer, rows = _longer(pending, batch, ids)
        copies = self._copies.of([*batch.tensors(), *ids.values(), *own_row], longer)
        return replace(
            pending,
            batch=batch.map(lambda column: copies[id(column)]),
            ids={name: copies[id(column)] for name, column in ids.items()},
            num_in_blocks=rows,
            own_row=None if pending.own_row is None else copies[id(pending.own_row)],
        )

    def _completed(self, pending: PendingBatch) -> Batch:
        if not self._there:
            return pending.batch
        with self._clock.measuring():
            rows = {each.name: gather_input(each, pending) for each in self._there}
            return pending.with_features(rows)


def _longer(
    pending: PendingBatch, batch: Batch, ids: Mapping[Feature, Tensor]
) -> tuple[dict[int, Padding], int]:
    """Return what columns get to have a size, and the rows of the edge table then.

    Args:
        pending: As the host made it.
        batch: The same, with the features that the host gathers.
        ids: Of the tables that the GPU gathers from.
    """
    edges = pending.ids.get("edge_x", ())
    shape = replace(shape_of(batch), edges=len(edges)).rounded()
    longer = paddings(batch, shape)
    for name, column in ids.items():
        rows = shape.edges if name == "edge_x" else shape.nodes
        longer[id(column)] = Padding(rows, -1)
    return longer, shape.edges


def gather_input(table: FeatureInput, pending: PendingBatch) -> Tensor:
    """Return the rows of `base_ids`, on the device of these."""
    with table.error_context():
        return table.base_table.gather(pending.ids[table.name])


class SlabCopies:
    """Prepares batches where a copy can fetch them: nothing of them moves on the host.

    A slab is not used again before its copy is done, and nobody waits for that: there is one more
    slab meanwhile. Any number of threads may ask.

    Args:
        spec: Of a graph in host memory.
        slabs: Of the same, in memory that `gpu` copies from.
        otherwise: Makes the batches whose features this one cannot: those on a disk, behind a cache
            of the host, or of selected rows.
        gpu: Where to.
        clock: Of what the stream does.
    """

    def __init__(
        self,
        spec: PlanSpec,
        slabs: SlabPreparer,
        otherwise: CopyingPreparer,
        gpu: Device,
        clock: WorkClock,
    ) -> None:
        self._spec, self._slabs, self._otherwise = spec, slabs, otherwise
        self._gpu, self._clock = gpu, clock
        inputs = feature_inputs(spec.graph)
        self._there = {table.name: table for table in inputs if table.is_in_reach_of_a_gpu}
        self._here = {table.name for table in inputs} - {*self._there}
        self._has_views = any(isinstance(table.table, RowView) for table in inputs)
        self._lock = threading.Lock()
        self._copied: deque[tuple[Tensor, StreamEvent]] = deque()
        """Slabs, and when their copies are done."""

    def batch(self, epoch: int, index: int) -> Batch:
        """Return a batch on the GPU, with padding up to a size; does not synchronize."""
        filled = None
        if not self._has_views:
            filled = self._slabs.fill(epoch, index, self._here, is_padded=True)
        if filled is None or filled.named & self._here:  # rows that are not in memory, or no longer
            return self._otherwise.of_roots(self._spec.draw(epoch, index))
        self._let_go()
        with self._clock.measuring():
            there = self._gpu.copy_from_host(filled.memory)
        with self._lock:
            self._copied.append((filled.memory, self._gpu.record_event()))
        pending = filled.pending(self._spec, there, None)
        with self._clock.measuring():
            rows = {name: gather_input(self._there[name], pending) for name in pending.ids}
            return pending.with_features(rows)

    def _let_go(self) -> None:
        """Let go of the slabs that were copied."""
        with self._lock:
            while self._copied and self._copied[0][1].query():
                self._copied.popleft()
