"""What a batch is made of: its events, negatives and queries, drawn on the host.

The core repeats this in `csrc/src/preparer.cpp`, which batches on the CPU use where it can.
Every draw is a pure function of (seed, epoch, index) and of a prefix of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tgflow.base.choices import Visibility
from tgflow.base.keys import KeyDomain, derive_key
from tgflow.base.slice_schedule import rows_of_slice
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import BatchSlice, HostEvents
from tgflow.graph.events import NO_EVENT, EventBatch
from tgflow.graph.sampling import Frontier, Sampler
from tgflow.plan.count_lookup import CountedPairs, CountHistory
from tgflow.plan.negatives import Negatives, NegativeSampler, NegativeSource, PairHistory
from tgflow.plan.replay import ExperienceReplay


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
    """float64 `[B, 1 + m, C]`: the plan's counts, if it has any."""
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
        """`eid`, `src`, `dst` and `t` of the events, on the batch's device."""
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
    """Repeat each event's value for its negatives, `[B, m]`."""
    return column.unsqueeze(1).expand(-1, m)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
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
    pairs: PairHistory
    slices: int
    for_gradients: bool

    def __len__(self) -> int:
        """Return the number of batches that the log holds now, including a partial last one."""
        num_events = max(0, self.end - self.start) if self.only is None else len(self.only)
        return (num_events + self.batch_size - 1) // self.batch_size

    @property
    def end(self) -> int:
        """The log position after the last event that is there now."""
        end = self.graph.num_events
        return end if self.stop is None else min(end, self.stop)

    def span(self, index: int) -> tuple[int, int]:
        """Return the log positions [begin, end) of the new events of batch `index`.

        Raises:
            IndexError: If the log holds no event of that batch.
        """
        begin = self.start + index * self.batch_size
        last = self.end if self.only is None else len(self.only)
        end = min(begin + self.batch_size, last)
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
        whole = self._whole(epoch, index)
        return self._with_counts(whole if piece is None else self._slice_of(whole, piece))

    def part(
        self, epoch: int, index: int, rows: slice | Tensor, num_negatives: int | None = None
    ) -> Roots:
        """Return the queries of some events of a batch; see `Plan.part`."""
        if self.replay is not None:
            raise ValueError("a plan that replays events has no parts")
        others = self.others(index) if num_negatives is None else None
        part = self._some_of(self._whole(epoch, index), rows, num_negatives, others)
        return self._with_counts(replace(part, num_new=len(part.host.eid)))

    def others(self, index: int) -> Tensor | None:
        """Return the destinations that parts of a batch are ranked among, beside those drawn."""
        negatives = self.negatives
        if not isinstance(negatives, NegativeSampler) or not negatives.among_all:
            return None
        begin, end = self.span(index)
        return negatives.all_known(self.pairs_at(begin), begin, end)

    def _whole(self, epoch: int, index: int) -> Roots:
        """Return the queries of batch `index` in `epoch`, without counts."""
        begin, end = self.span(index)
        key = derive_key(self.seed, epoch, index)
        if self.only is not None:
            place = index * self.batch_size
            eid = self.only[place : place + self.batch_size]
        else:
            eid = torch.arange(begin, end)
        num_new = len(eid)
        if self.replay is not None:
            own = derive_key(key, KeyDomain.REPLAY)
            drawn = self.replay.draw(own, begin, end - begin, self.graph.since(begin))
            eid = torch.cat([eid, drawn])
        events, start = self.graph.log.gather(eid), self._starts(eid, begin)
        src, dst, cut = events.src, events.dst, start
        if isinstance(self.negatives, NegativeSampler) and self.negatives.is_list:
            limit = eid if self.sees_all_before else start
            cut = torch.minimum(limit, self.graph.log.positions(events.t))
        negatives = self.negatives.draw(
            self.pairs_at(begin),
            derive_key(key, KeyDomain.NEGATIVES),
            src,
            dst,
            start=cut,
            stop=end,
        )
        host = HostEvents(
            eid, src, dst, events.t, begin, end, negatives.mask, events.weight, events.relation
        )
        queries = self._queries(host, negatives, start)
        return Roots(epoch, index, key, num_new, host, negatives, queries)

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
        return self.pairs.at(self.graph.since(begin))

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
        return replace(roots, counts=counts.answer(**self.pairs_of(roots, limit)._asdict()))

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

    def _slice_of(self, whole: Roots, number: int) -> Roots:
        """Return the queries of a slice, with a key of its own, without counts."""
        rows = self.rows_of_slice(number, whole.num_new, len(whole.host.eid))
        if rows is None:
            return whole
        fallbacks = whole.negatives.num_fallbacks
        return replace(
            self._some_of(whole, rows),
            key=derive_key(whole.key, KeyDomain.SLICE, number),
            num_new=int((rows < whole.num_new).sum()),
            slice=BatchSlice(number, self.slices, whole.num_new, fallbacks, whole.host),
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
    def full_size(self) -> int:
        """Events of a full batch: all its new ones, and the most to replay."""
        replay = 0 if self.replay is None else self.replay.num_events(self.batch_size)
        return self.batch_size + replay

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
