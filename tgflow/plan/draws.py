"""What a batch is made of: its events, negatives and queries, drawn on the host.

A whole batch or a slice is drawn by one call of the core, in a slab (`csrc/src/preparer.cpp`).
Every draw is a pure function of (seed, epoch, index) and of a prefix of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any
from weakref import proxy

import torch
from torch import Tensor

from tgflow.base.choices import Visibility
from tgflow.base.keys import KeyDomain, derive_key
from tgflow.base.slice_schedule import rows_of_slice
from tgflow.base.units import INT64_MAX
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.graph._native import NATIVE_STRATEGIES
from tgflow.graph.batch import BatchSlice, HostEvents
from tgflow.graph.events import NO_EVENT, EventBatch
from tgflow.graph.host import HostGraph
from tgflow.graph.log import BySince, EventLog
from tgflow.graph.sampling import Frontier, Sampler
from tgflow.plan._native import (
    PARAMS,
    BatchPlaces,
    BatchRequest,
    BlockPlaces,
    Feature,
    FilledSlab,
    Preparer,
    Slab,
    SlabColumns,
    SlabPool,
    draw_replay,
    for_each_negative,
)
from tgflow.plan.count_lookup import CountedPairs, CountHistory
from tgflow.plan.negatives import Negatives, NegativeSampler, NegativeSource, PairHistory
from tgflow.plan.replay import ExperienceReplay

KEPT_SLABS = 8
"""Most unused slabs kept: enough for a loader's lookahead, some threads and consumers."""


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Some events of a batch with all their negatives, or all of them to be stored."""

    index: int
    """Index of the batch."""
    rows: slice | Tensor
    """Its events: rows of the batch, or their numbers, int64 `[N]`."""
    is_last: bool
    """Whether it completes the batch's scores."""
    is_stored: bool = False
    """Whether it is the batch to store: all events, one negative each, not scored."""


@dataclass(frozen=True, slots=True, eq=False)
class Roots:
    """Queries of a batch: its events and negatives, drawn on the host, or copied to a GPU."""

    epoch: int
    index: int
    key: int
    """Key of the batch's draws."""
    num_new: int
    host: HostEvents
    negatives: Negatives
    queries: Frontier
    """The sources, the destinations and the negatives of all events, then the negatives' sources
    unless they are the events' own. Not deduplicated."""
    counts: Tensor | None = None
    """`[B, 1 + m, C]`: the plan's counts, of its `counts_dtype`, if it has any."""
    slice: BatchSlice | None = None
    """As `Batch.slice`."""
    columns: Mapping[str, Tensor] | None = None
    """The events' columns on a GPU; None: those of `host`."""
    begin: Tensor | None = None
    """On a GPU, `host.begin`, int64 `[1]`."""
    since: Tensor | None = None
    """On a GPU, the tick at which the horizon begins, int64 `[1]`, if the graph has one."""
    params: Tensor | None = None
    """On a GPU, int64 `[H, 3]`: parameters of each hop's sampler, see `hop_by_hop`."""

    @property
    def events(self) -> Mapping[str, Tensor]:
        """Columns of the events, of `EventBatch` and `eid`, on the batch's device."""
        return self.columns or self.host.columns()

    def split(self, column: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the parts of a column of `queries`, as views."""
        num, m = self.negatives.dst.shape
        src, dst, rest = column.tensor_split((num, 2 * num))
        negative_dst = rest[: num * m].view(num, m)
        if self.negatives.own_sources:
            return src, dst, for_each_negative(src, m), negative_dst
        return src, dst, rest[num * m :].view(num, m), negative_dst


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """How to draw a batch."""

    native: BatchRequest
    log: EventLog
    epoch: int
    index: int
    key: int
    begin: int
    end: int
    piece: tuple[tuple[int, int, int], Tensor] | None
    """Of a slice: its number, how many there are and new events of the whole batch; its rows."""
    given: Negatives | None
    """Negatives that the core does not draw."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, weakref_slot=True)
class Draws:
    """The settings of a plan, see `Plan`, and what it draws for each batch. Thread-safe."""

    graph: TemporalGraph
    seed: int
    batch_size: int
    fanouts: tuple[int, ...]
    sampler: Sampler
    visibility: Visibility
    negatives: NegativeSource
    start: int
    stop: int | None
    only: Tensor | None
    replay: ExperienceReplay | None
    with_memory: bool
    with_nodes: bool
    counts: CountHistory
    counts_dtype: torch.dtype
    pairs: PairHistory
    slices: int
    for_gradients: bool
    _preparers: BySince[tuple[PairHistory | None, Preparer]] = field(init=False, repr=False)
    _pool: SlabPool = field(init=False, repr=False)
    _drawn: NegativeSampler | None = field(init=False, repr=False)
    """The negatives, if the core draws them."""
    full_size: int = field(init=False, repr=False)
    """Events of a full batch: all its new ones, and the most to replay."""

    def __post_init__(self) -> None:
        replay = 0 if self.replay is None else self.replay.num_events(self.batch_size)
        object.__setattr__(self, "full_size", self.batch_size + replay)
        own = self.negatives
        is_drawn = isinstance(own, NegativeSampler) and own.single_kind is not None
        object.__setattr__(self, "_drawn", own if is_drawn else None)
        object.__setattr__(self, "_pool", SlabPool(KEPT_SLABS, None))
        # a proxy: a cycle would keep the memory of a graph that is dropped
        object.__setattr__(self, "_preparers", BySince(partial(_preparer, proxy(self))))

    def __len__(self) -> int:
        """Return the number of batches that the log holds now, including a partial last one."""
        num_events = max(0, self.end - self.start) if self.only is None else len(self.only)
        return (num_events + self.batch_size - 1) // self.batch_size

    @property
    def end(self) -> int:
        """The log position after the last event that is there now."""
        end = self.graph.num_events
        return end if self.stop is None or self.stop > end else self.stop

    def span(self, index: int) -> tuple[int, int]:
        """Return the log positions [begin, end) of the new events of batch `index`.

        Raises:
            IndexError: If the log holds no event of that batch.
        """
        begin = self.start + index * self.batch_size
        last = self.graph.backend.position if self.only is None else len(self.only)
        if self.only is None and self.stop is not None and self.stop < last:
            last = self.stop
        end = begin + self.batch_size if begin + self.batch_size < last else last
        if index < 0 or begin >= end:
            raise IndexError(f"there is no batch {index}; the plan has {len(self)} batches now")
        if self.only is not None:
            return int(self.only[begin]), int(self.only[end - 1]) + 1
        return begin, end

    def roots(self, epoch: int, index: int, piece: int | BatchPart | None = None) -> Roots:
        """Return the queries of batch `index` in `epoch`. Never waits for a device.

        Without counts if the graph is a shard: `tgflow.ranks.sharded_counts` adds them.

        Args:
            epoch: Epoch of the batch.
            index: Index of the batch.
            piece: The slice, by its number, or part to draw; None: the whole batch.

        Raises:
            IndexError: If the log holds no event of that batch, or there is no such slice.
            ValueError: If an event has no eligible negative; see `NegativeSampler`.
        """
        if isinstance(piece, BatchPart):
            return self.part(epoch, index, piece.rows, 1 if piece.is_stored else None)
        filled = self.fill(Slab(self._pool), epoch, index, piece)
        return self.view(filled, filled.memory)

    def fill(self, slab: Slab, *asked: Any, **options: Any) -> FilledSlab:
        """Draw the batch of a `request` in a slab."""
        return Draws.fill_all(slab, [self.request(*asked, **options)], [])[0]

    def request(
        self,
        epoch: int,
        index: int,
        number: int | None = None,
        *,
        tables: Callable[[], Mapping[Feature, Tensor]] | None = None,
        is_padded: bool = False,
        with_counts: bool = True,
    ) -> Drawing:
        """Return how to draw batch `index` of `epoch`, or slice `number` of it; raises as `roots`.

        Args:
            epoch: Epoch of the batch.
            index: Index of the batch.
            number: The slice.
            tables: Adds neighbors and features, of a graph in host memory. Returns the tables whose
                rows are gathered, once the batch's events are there. None: queries only.
            is_padded: Whether frontiers and tables are padded.
            with_counts: Whether there are counts.
        """
        graph, size = self.graph, self.batch_size
        begin, end = self.span(index)
        since = 0 if graph.log.horizon is None else graph.log.since(begin)
        key = derive_key(self.seed, epoch, index)
        if self.counts.asked:
            self.counts.check_deletions()
        typed, native = self._preparers.at(since)
        only, num_new, first, num_replay = None, end - begin, begin, 0
        if self.only is not None:
            only = self.only[index * size : (index + 1) * size]
            num_new = len(only)
        if self.replay is not None:
            first, num_replay = self.replay.begin(begin, since), self.full_size - size
            if num_new != size:
                num_replay = self.replay.num_events(num_new)
        given, own = None, self._drawn
        if own is None:
            given = self._given(key, begin, end, only, first, num_replay)
        elif typed is not None:
            typed.upto(end if own.draws_pairs else own.limit(end))
        rows, own_key = None, key
        if number is not None:
            num_events = num_new + min(num_replay, begin - first)
            rows = self.rows_of_slice(number, num_new, num_events)
            own_key = key if rows is None else derive_key(key, KeyDomain.SLICE, number)
        edge_x = node_x = node_end = None
        reads_edges = reads_nodes = False
        if tables is not None:
            features, node_end = tables(), graph.node_x_end
            reads_edges, reads_nodes = graph.edge_x is not None, graph.node_x is not None
            edge_x, node_x = features.get("edge_x"), features.get("node_x")
        dst = src = log_q = None
        if given is not None:
            dst, src = given.dst.contiguous(), None if given.own_sources else given.src.contiguous()
            log_q = given.log_q
        request = native.request(
            key, own_key, dst, src, log_q, tables is None, with_counts, begin, end, since,
            only, first, num_replay, reads_edges, edge_x, reads_nodes, node_x,
            INT64_MAX if node_end is None else node_end, is_padded, rows,
        )  # fmt: skip
        piece = None if rows is None or number is None else ((number, self.slices, num_new), rows)
        return Drawing(request, graph.log, epoch, index, own_key, begin, end, piece, given)

    @staticmethod
    def fill_all(slab: Slab, drawings: Sequence[Drawing], made: list[Any]) -> list[FilledSlab]:
        """Draw batches in a slab, behind those that are there, by one call; raises as `roots`.

        Adds an item to `made` for each batch, after an error for those before.
        """
        slab.fill([*map(_native_of, drawings)], made)
        found: list[FilledSlab] = []
        for of, (places, blocks, events, drawn) in zip(drawings, made, strict=True):
            # copies: events outlive their batch, and would keep its slab alive
            eid, src, dst, t = torch.from_numpy(events).unbind()
            at, mask = BatchPlaces(*places), None if drawn is None else torch.from_numpy(drawn)
            if (given := of.given) is not None:
                mask, at = given.mask, at._replace(num_fallbacks=given.num_fallbacks)
            weight = relation = None
            if of.log.has_further:
                weight, relation = of.log.column("weight", eid), of.log.column("relation", eid)
            host = HostEvents(eid, src, dst, t, of.begin, of.end, mask, weight, relation)
            piece, added = None, {}
            if of.piece is not None:
                facts, rows = of.piece
                piece = BatchSlice(*facts, at.num_fallbacks, host)
                host = host.part(rows)
            if weight is not None or relation is not None:
                columns = {"weight": host.weight, "relation": host.relation}
                added = {n: (slab.add(x), x.dtype) for n, x in columns.items() if x is not None}
            hops = [BlockPlaces(*each) for each in blocks] if blocks else []
            found += (FilledSlab(of.epoch, of.index, of.key, slab, host, piece, at, hops, added),)
        return found

    def view(self, filled: FilledSlab, memory: Tensor) -> Roots:
        """Return the queries of a batch as views of `memory`, its slab or a copy on the GPU."""
        at, host, piece = filled.at, filled.host, SlabColumns(memory)
        num, m, size = at.num_events, self.negatives.num, at.num_queries
        src, dst, negative_src, negative_dst = piece.ends(at.ends, at, m)
        columns = begin = since = params = None
        if self.gpu is not None and memory.device == self.gpu.device:
            columns = {"eid": piece.column(at.eid, num), "t": piece.column(at.t, num)}
            columns |= {"src": src, "dst": dst} | piece.added(filled)
            begin, since = piece.column(at.words, 1), piece.column(at.words + 8, 1)
            params = piece.column(at.words + 16, len(self.fanouts), PARAMS)
        negatives = Negatives(
            negative_src, negative_dst, 0 if filled.slice else at.num_fallbacks,
            own_sources=size == num * (2 + m), mask=host.negative_mask,
            log_q=piece.features(at.log_q, num, m),
        )  # fmt: skip
        places = at.ends, at.query_t, at.query_position
        queries = Frontier(*(piece.column(place, size) for place in places))
        return Roots(
            filled.epoch, filled.index, filled.key, at.num_new, host, negatives, queries,
            self.counts_of(at, piece), filled.slice, columns, begin,
            None if self.graph.horizon is None else since, params,
        )  # fmt: skip

    def counts_of(self, at: BatchPlaces, piece: SlabColumns) -> Tensor | None:
        """Return the counts of a slab's events and negatives; None if it has none."""
        num, m, width = at.num_events, self.negatives.num, len(self.counts.asked)
        if at.counts < 0:
            return None
        return piece.column(at.counts, num * (1 + m), width, self.counts_dtype).view(
            num, 1 + m, width
        )

    def _given(
        self, key: int, begin: int, end: int, only: Tensor | None, first: int, num_replay: int
    ) -> Negatives:
        """Draw negatives that the core does not draw, of a batch whose replay begins at `first`."""
        eid = torch.arange(begin, end) if only is None else only
        if self.replay is not None:
            own = derive_key(key, KeyDomain.REPLAY)
            drawn = draw_replay(first, begin, self.replay.half_life, own, num_replay)
            eid = torch.cat([eid, drawn])
        events, start = self.graph.log.gather(eid), self._starts(eid, begin)
        cut = start
        if isinstance(self.negatives, NegativeSampler) and self.negatives.is_list:
            limit = eid if self.sees_all_before else start
            cut = torch.minimum(limit, self.graph.log.positions(events.t))
        own, pairs = derive_key(key, KeyDomain.NEGATIVES), self.pairs_at(begin)
        return self.negatives.draw(pairs, own, events.src, events.dst, start=cut, stop=end)

    def part(
        self, epoch: int, index: int, rows: slice | Tensor, num_negatives: int | None = None
    ) -> Roots:
        """Return the queries of some events of a batch; see `Plan.part`."""
        if self.replay is not None:
            raise ValueError("a plan that replays events has no parts")
        others = self.others(index) if num_negatives is None else None
        filled = self.fill(Slab(self._pool), epoch, index, with_counts=False)
        whole = self.view(filled, filled.memory)
        part = self._some_of(whole, rows, num_negatives, others)
        return self._with_counts(replace(part, num_new=len(part.host.eid)))

    def others(self, index: int) -> Tensor | None:
        """Return the destinations that parts of a batch are ranked among, beside those drawn."""
        negatives = self.negatives
        if not isinstance(negatives, NegativeSampler) or not negatives.among_all:
            return None
        begin, end = self.span(index)
        return negatives.all_known(self.pairs_at(begin), begin, end)

    def ask(
        self, src: Tensor, dst: Tensor, t: Tensor, as_of: Tensor, relation: Tensor | None = None
    ) -> Roots:
        """Return the queries of pairs outside of the log, as of any positions and times.

        Each row is an event with its first destination, whose negatives are the others.

        Args:
            src: int64 `[B]`.
            dst: int64 `[B, 1 + m]`.
            t: Ticks, int64 `[B]`.
            as_of: Log positions, int64 `[B]`: earlier events are seen.
            relation: Relations, int64 `[B]`; None: the pairs have none.

        Raises:
            ValueError: If events have been deleted from the graph, and there are counts; or these
                are of relations, which the log has and the pairs have not.
        """
        if relation is None and self.counts.are_of_relations and self.graph.log.has_relations:
            raise ValueError(
                "the model counts events by relation: give the relation of each pair, relation=... "
                "(--relation)"
            )
        first, others = dst[:, 0].contiguous(), dst[:, 1:]
        begin, end = (int(as_of.min()), int(as_of.max())) if len(src) else (0, 0)
        since = self.graph.since(begin)
        if since < self.graph.forgotten:
            raise ValueError(
                f"what was seen as of position {begin} was forgotten, with the events before "
                f"{self.graph.forgotten:,}: ask as of a later one"
            )
        if since != self.graph.since(end):
            raise ValueError(f"the horizon moves between positions {begin} and {end}: ask apart")
        own = for_each_negative(src, others.shape[1])
        negatives = Negatives(own, others, 0, own_sources=True)
        eid = torch.full_like(src, NO_EVENT)
        host = HostEvents(eid, src, first, t, begin, end, relation=relation)
        queries = self._queries(host, negatives, as_of)
        roots = Roots(0, 0, self.seed, len(src), host, negatives, queries)
        return self._with_counts(roots, as_of)

    def pairs_at(self, begin: int) -> PairHistory:
        """Return the pairs that a batch which begins at a log position sees."""
        log = self.graph.log
        return self.pairs if log.horizon is None else self.pairs.at(log.since(begin))

    def pairs_of(self, roots: Roots, limit: Tensor | None = None) -> CountedPairs:
        """Return the pairs to count, as of `limit` or else as each event sees the past."""
        host, negatives = roots.host, roots.negatives
        if limit is None:
            limit = host.eid if self.sees_all_before else self._starts(host.eid, host.begin)
        return CountedPairs(
            EventBatch.checked(src=host.src, dst=host.dst, t=host.t, relation=host.relation),
            None if negatives.own_sources else negatives.src,
            negatives.dst,
            limit,
            host.end,
        )

    def _with_counts(self, roots: Roots, limit: Tensor | None = None) -> Roots:
        """Add all counts, unless all ranks must ask for them together."""
        if not self.counts.asked or self.graph.shard.world > 1:
            return roots
        counts = self.counts.at(self.graph.since(roots.host.begin))
        found = counts.answer(**self.pairs_of(roots, limit)._asdict())
        return replace(roots, counts=found.to(self.counts_dtype))

    def _some_of(
        self,
        whole: Roots,
        rows: slice | Tensor,
        num_negatives: int | None = None,
        others: Tensor | None = None,
    ) -> Roots:
        """Return the queries of some events of a batch, with its key, without counts."""
        host, negatives = whole.host, whole.negatives.part(rows, num_negatives)
        if others is not None:
            dst = host.dst[rows]
            negatives = negatives.followed_by(
                others, dst, self.pairs_at(whole.host.begin).are_alike(dst, others)
            )
            if isinstance(self.negatives, NegativeSampler) and self.negatives.filtered:
                are_false = ~self._are_true(host, rows, negatives.dst)
                assert negatives.mask is not None
                negatives = replace(negatives, mask=negatives.mask & are_false)
        host = host.part(rows)
        host = replace(host, negative_mask=negatives.mask)
        queries = self._queries(host, negatives, self._starts(host.eid, host.begin))
        return replace(whole, host=host, negatives=negatives, queries=queries)

    def _are_true(self, host: HostEvents, rows: slice | Tensor, nodes: Tensor) -> Tensor:
        """Return which `nodes`, `[B, N]`, are destinations at the time of an event, like its own.

        Those are the destinations of all the log's events with its source, relation and time.
        """
        src, t = host.src[rows, None], host.t[rows, None]
        if not len(t):
            return torch.zeros_like(nodes, dtype=torch.bool)
        log = self.graph.log
        events = log.read(log.position(int(t.min())), log.position(int(t.max()) + 1))
        are_alike = (events.t == t) & (events.src == src)
        if host.relation is not None:
            are_alike &= events.relation == host.relation[rows, None]
        return torch.stack(
            [torch.isin(x, events.dst[alike]) for x, alike in zip(nodes, are_alike, strict=True)]
        )

    def rows_of_slice(self, number: int | None, num_new: int, num_rows: int) -> Tensor | None:
        """Return the rows of a slice of a batch, int64; None: all of them.

        Raises:
            IndexError: If there is no such slice.
        """
        if number is not None and not 0 <= number < self.slices:
            raise IndexError(f"slice {number} is out of range; a batch has {self.slices}")
        if number is None or self.slices == 1:
            return None
        return rows_of_slice(number, self.slices, num_new, num_rows)

    @property
    def gpu(self) -> Device | None:
        """The GPU that makes batches, which holds the graph; None: host memory."""
        return self.graph.gpu

    @property
    def sees_all_before(self) -> bool:
        """Whether a query sees all that is earlier than its event, including its own batch."""
        return self.visibility == "event"

    def _starts(self, eid: Tensor, begin: int) -> Tensor:
        """Return the start of each event's batch within the horizon, int64 of `eid`'s shape."""
        if self.replay is None:  # all are of this batch
            return torch.full_like(eid, begin)
        size = self.batch_size
        index = torch.div(eid - self.start, size, rounding_mode="floor")
        return (self.start + index * size).clamp_(min=self.graph.since(begin))

    def _queries(self, host: HostEvents, negatives: Negatives, start: Tensor) -> Frontier:
        """Return the sources, destinations and negatives, each as of its event's `start`."""
        m, own_sources = negatives.dst.shape[1], negatives.own_sources

        def per_root(column: Tensor) -> Tensor:
            repeated = column if m == 1 else column.repeat_interleave(m)
            return torch.cat([column, column, repeated] + ([] if own_sources else [repeated]))

        drawn = [negatives.dst] if own_sources else [negatives.dst, negatives.src]
        nodes = torch.cat([host.src, host.dst, *(each.reshape(-1) for each in drawn)])
        if self.sees_all_before and not self.with_memory and self.with_nodes:
            position = torch.full_like(nodes, host.begin)
        else:
            position = per_root(start)
        t = per_root(host.t) if self.fanouts else torch.zeros_like(nodes)
        return Frontier(nodes, t, position)


_native_of = attrgetter("native")


def _preparer(draws: Draws, since: int) -> tuple[PairHistory | None, Preparer]:
    """Return the pairs within a horizon, if they have types, and what draws batches that see it."""
    graph, pairs = draws.graph, draws.pairs.at(since)
    drawn = NegativeSampler(1) if draws._drawn is None else draws._drawn
    is_whole, backend, sampler = graph.shard.world == 1, graph.backend, draws.sampler
    counts = draws.counts.at(since).native if draws.counts.asked and is_whole else None
    strategy = "recent" if callable(sampler.strategy) else sampler.native_strategy
    return None if pairs.types is None else pairs, Preparer(
        backend.log, backend.native if isinstance(backend, HostGraph) else None, pairs.native,
        counts, start=draws.start, batch_size=draws.batch_size, fanouts=list(draws.fanouts),
        strategy=NATIVE_STRATEGIES[strategy], span=sampler.span or 1,
        sees_all_before=draws.sees_all_before, with_memory=draws.with_memory,
        with_nodes=draws.with_nodes, seconds_per_tick=graph.seconds_per_tick,
        num_negatives=draws.negatives.num, every=drawn.every, draws_pairs=drawn.draws_pairs,
        cut=-1 if drawn.cut is None or drawn.draws_pairs else drawn.cut,
        pairs_from=drawn.since or 0 if drawn.inductive else 0, collide=drawn.collide,
        replace=drawn.replace, half_life=1.0 if draws.replay is None else draws.replay.half_life,
        has_float_counts=draws.counts_dtype is torch.float32,
    )  # fmt: skip
