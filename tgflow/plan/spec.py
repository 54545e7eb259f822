"""What the batches of a plan are, wherever they are prepared: functions of seed and log alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from tgflow.batch import BatchSlice, HostEvents
from tgflow.choices import Strategy, Visibility
from tgflow.counts import Count
from tgflow.cuda.device import Device
from tgflow.describe import described
from tgflow.events import NO_EVENT, EventBatch
from tgflow.graph import TemporalGraph
from tgflow.keys import KeyDomain, derive_key
from tgflow.plan.counts import CountHistory
from tgflow.plan.negatives import Negatives, NegativeSource, PairHistory
from tgflow.plan.pending import check_preparable
from tgflow.plan.replay import ExperienceReplay
from tgflow.sampler import SamplerFunction
from tgflow.sampling import Frontier, Sampler
from tgflow.sampling.rows import check_samplable
from tgflow.schedule import rows_of_slice

_NO_COUNTS = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Roots:
    """What a batch asks about: its events and negatives, drawn on the host and kept there."""

    epoch: int
    index: int
    key: int
    """Of the batch's draws."""
    num_new: int
    """How many of the events, the first ones, are new."""
    host: HostEvents
    negatives: Negatives
    queries: Frontier
    """The sources, the destinations and the negatives of all events; negatives' sources follow
    where they are not the events' own. Equal queries are not yet one."""
    counts: Tensor = _NO_COUNTS
    """int64 `[C * B * (1 + m)]`: the answers to the plan's counts; see `CountHistory.read`."""
    slice: BatchSlice | None = None
    """As `Batch.slice`."""

    def split(self, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parts of a column of `queries`, as views.

        Returns:
            Of the sources, `[B]`; of the destinations, `[B]`; and of the negatives' destinations,
            followed by their sources if they have their own, `[1 or 2, B, m]`.
        """
        num, m = self.negatives.dst.shape
        num_lists = 1 if self.negatives.own_sources else 2
        src, dst, rest = column.tensor_split((num, 2 * num))
        return src, dst, rest.reshape(num_lists, num, m)

    def rows(self, row: Tensor) -> dict[str, Tensor]:
        """Return the root fields of a batch.

        Args:
            row: Where each of `queries` is in the top frontier, int64 `[Q]` on any device; `[0]`
                where there is none.
        """
        if not len(row):  # no frontier was made
            none = row.view(0, self.negatives.dst.shape[1])
            return {
                "src_row": row,
                "dst_row": row,
                "negative_src_row": none,
                "negative_dst_row": none,
            }
        src_row, dst_row, rest = self.split(row)
        m = rest.shape[2]
        return {
            "src_row": src_row,
            "dst_row": dst_row,
            "negative_src_row": for_each_negative(src_row, m)
            if self.negatives.own_sources
            else rest[1],
            "negative_dst_row": rest[0],
        }


@described
class PlanSpec:
    """The pure part of a `Plan`, whose arguments it takes: which events, draws and neighborhoods.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        graph: TemporalGraph,
        *,
        seed: int,
        batch_size: int,
        fanouts: Sequence[int],
        strategy: Strategy | SamplerFunction,
        span: int | None = None,
        visibility: Visibility,
        negatives: NegativeSource,
        start: int = 0,
        stop: int | None = None,
        only: Tensor | None = None,
        replay: ExperienceReplay | None = None,
        with_memory: bool,
        with_nodes: bool = True,
        counts: Sequence[Count] | CountHistory = (),
        pairs: PairHistory | None = None,
        slices: int = 1,
    ) -> None:
        _check(batch_size, fanouts, visibility, slices)
        if fanouts and not with_nodes:
            raise ValueError(
                f"fanouts are neighbors of nodes, got {tuple(fanouts)} with with_nodes=False: give "
                "none, or leave it out"
            )
        if only is not None and (replay is not None or start or stop is not None):
            raise ValueError("a plan of given events has neither start, stop nor replay")
        if start < 0 or (stop is not None and stop < start):
            raise ValueError(f"a plan needs 0 <= start <= stop, got start={start}, stop={stop}")
        graph.check_node_x()
        check_preparable(graph)
        self.graph = graph
        self.seed = seed
        self.batch_size = batch_size
        self.fanouts = tuple(fanouts)
        self.sampler = Sampler(strategy, span)
        check_samplable(graph, self.sampler)
        self.visibility = visibility
        self.negatives = negatives
        self.start = start
        self.stop = stop
        self.only = only
        self.replay = replay
        self.with_memory = with_memory
        self.with_nodes = with_nodes
        self.slices = slices
        self.pairs = PairHistory(graph.log) if pairs is None else pairs
        """What negatives are drawn from."""
        self.counts = _count_history(graph, counts)

    def __len__(self) -> int:
        """Return the number of batches that the log holds now, a last partial one included."""
        num_events = max(0, self._end() - self.start) if self.only is None else len(self.only)
        return (num_events + self.batch_size - 1) // self.batch_size

    def _facts(self) -> dict[str, object]:
        return {
            "num_batches": len(self),
            "batch_size": self.batch_size,
            "start": self.start,
            "stop": self._end(),
            "fanouts": self.fanouts,
            "sampler": self.sampler,
            "visibility": self.visibility,
            "negatives": self.negatives,
            "seed": self.seed,
        }

    def _end(self) -> int:
        end = self.graph.num_events
        return end if self.stop is None else min(end, self.stop)

    def span(self, index: int) -> tuple[int, int]:
        """Return the log positions [begin, end) that the new events of batch `index` are in.

        Raises:
            IndexError: If the log does not hold an event of that batch.
        """
        begin = self.start + index * self.batch_size
        last = self._end() if self.only is None else len(self.only)
        end = min(begin + self.batch_size, last)
        if index < 0 or begin >= end:
            raise IndexError(f"there is no batch {index}; the plan has {len(self)} batches now")
        if self.only is not None:
            return int(self.only[begin]), int(self.only[end - 1]) + 1
        return begin, end

    def draw(self, epoch: int, index: int, number: int | None = None) -> Roots:
        """Return what batch `index` asks about in `epoch`. Never waits for a device.

        Args:
            epoch: Of the batch.
            index: Of the batch.
            number: Of the slice that is drawn alone; None: the whole batch.

        Raises:
            IndexError: If the log does not hold an event of that batch, or there is no such slice.
            ValueError: If an event can have no negative; see `NegativeSampler`.
        """
        whole = self._drawn(epoch, index)
        return self._with_counts(whole if number is None else self._slice_of(whole, number))

    def _drawn(self, epoch: int, index: int) -> Roots:
        """Return what batch `index` asks about in `epoch`, before the past is counted."""
        begin, end = self.span(index)
        key = derive_key(self.seed, epoch, index)
        eid, num_new = self._positions(index, key, begin, end)
        events = self.graph.log.gather(eid)
        start = self._starts(eid, begin)
        negatives = self.negatives.draw(
            self.pairs,
            derive_key(key, KeyDomain.NEGATIVES),
            events.src,
            events.dst,
            start=start,
            stop=end,
        )
        return Roots(
            epoch=epoch,
            index=index,
            key=key,
            num_new=num_new,
            host=HostEvents(
                eid,
                events.src,
                events.dst,
                events.t,
                begin,
                end,
                negatives.mask,
                events.weight,
            ),
            negatives=negatives,
            queries=self._queries(events, negatives, start, begin),
        )

    def ask(self, src: Tensor, dst: Tensor, t: Tensor, as_of: Tensor) -> Roots:
        """Return what pairs ask about that no batch of the log has: as of any positions, any times.

        Each row is an event with its first destination, whose negatives are the others.

        Args:
            src: int64 `[B]`.
            dst: int64 `[B, 1 + m]`.
            t: Ticks, int64 `[B]`.
            as_of: Log positions, int64 `[B]`: what is before is seen.

        Raises:
            ValueError: If events have been deleted from the graph, and there are counts.
        """
        first, others = dst[:, 0].contiguous(), dst[:, 1:]
        own = src.unsqueeze(1).expand_as(others)
        begin, end = (int(as_of.min()), int(as_of.max())) if len(src) else (0, 0)
        negatives = Negatives(own, others, 0, own_sources=True)
        roots = Roots(
            epoch=0,
            index=0,
            key=self.seed,
            num_new=len(src),
            host=HostEvents(torch.full_like(src, NO_EVENT), src, first, t, begin, end),
            negatives=negatives,
            queries=self._queries(EventBatch(src, first, t), negatives, as_of, begin),
        )
        return self._with_counts(roots, as_of)

    def _with_counts(self, roots: Roots, limit: Tensor | None = None) -> Roots:
        """Add the answers of all counts, as of `limit` or else as each event sees the past."""
        if not self.counts.asked:
            return roots
        host, negatives = roots.host, roots.negatives
        if limit is None:
            limit = host.eid if self.sees_all_before else self._starts(host.eid, host.begin)
        counts = self.counts.answer(
            EventBatch.checked(src=host.src, dst=host.dst, t=host.t),
            None if negatives.own_sources else negatives.src,
            negatives.dst,
            limit=limit,
            stop=host.end,
        )
        return replace(roots, counts=counts)

    def draw_part(self, epoch: int, index: int, rows: slice, num_negatives: int) -> Roots:
        """Return what some events of batch `index` ask about; see `tgflow.Plan.part`.

        Raises:
            ValueError: If the plan replays events, of which a part would have none.
        """
        if self.replay is not None:
            raise ValueError("a plan that replays events has no parts")
        part = self._some_of(self._drawn(epoch, index), rows, num_negatives)
        return self._with_counts(replace(part, num_new=len(part.host.eid)))

    def _some_of(self, whole: Roots, rows: slice, num_negatives: int) -> Roots:
        """Return what some events of a batch ask about, by its key, before the past is counted."""
        host = whole.host
        eid, src, dst, t = (x[rows] for x in (host.eid, host.src, host.dst, host.t))
        weight = None if host.weight is None else host.weight[rows]
        negatives = whole.negatives.part(rows, num_negatives)
        start = self._starts(eid, host.begin)
        return replace(
            whole,
            host=HostEvents(eid, src, dst, t, host.begin, host.end, negatives.mask, weight),
            negatives=negatives,
            queries=self._queries(EventBatch(src, dst, t), negatives, start, host.begin),
        )

    def _slice_of(self, whole: Roots, number: int) -> Roots:
        """Return what a slice asks about, by a key of its own, before the past is counted."""
        if not 0 <= number < self.slices:
            raise IndexError(f"there is no slice {number}; a batch has {self.slices}")
        if self.slices == 1:
            return whole
        rows = rows_of_slice(number, self.slices, len(whole.host.eid))
        fallbacks = whole.negatives.num_fallbacks
        return replace(
            self._some_of(whole, slice(rows.start, rows.stop), self.negatives.num),
            key=derive_key(whole.key, KeyDomain.SLICE, number),
            num_new=min(max(whole.num_new - rows.start, 0), len(rows)),
            slice=BatchSlice(number, self.slices, whole.num_new, fallbacks, whole.host),
        )

    @property
    def gpu(self) -> Device | None:
        """The GPU that batches are made on, which the graph is on; None: made in host memory."""
        return self.graph.gpu

    @property
    def full_size(self) -> int:
        """Events of a batch that has all its new ones, and as many to replay as it may."""
        replay = 0 if self.replay is None else self.replay.num_events(self.batch_size)
        return self.batch_size + replay

    @property
    def sees_all_before(self) -> bool:
        """Whether a query sees all that is earlier than its event, of its own batch too."""
        return self.visibility == "event"

    def _positions(self, index: int, key: int, begin: int, end: int) -> tuple[Tensor, int]:
        """Return the events of a batch, and how many of them, the first ones, are new."""
        if self.only is not None:
            place = index * self.batch_size
            new = self.only[place : place + self.batch_size]
        else:
            new = torch.arange(begin, end)
        if self.replay is None:
            return new, len(new)
        drawn = self.replay.draw(derive_key(key, KeyDomain.REPLAY), begin, end - begin)
        return torch.cat([new, drawn]), len(new)

    def _starts(self, eid: Tensor, begin: int) -> Tensor:
        """Return the position at which the batch of each event started, int64 of `eid`'s shape."""
        if self.replay is None:  # all are of this batch
            return torch.full_like(eid, begin)
        size = self.batch_size
        index = torch.div(eid - self.start, size, rounding_mode="floor")
        return (self.start + index * size).clamp_(min=0)

    def _queries(
        self, events: EventBatch, negatives: Negatives, start: Tensor, begin: int
    ) -> Frontier:
        m, own_sources = negatives.dst.shape[1], negatives.own_sources
        columns = [events.src, events.dst, negatives.dst.reshape(-1)]
        if not own_sources:
            columns.append(negatives.src.reshape(-1))
        nodes = torch.cat(columns)
        if self.sees_all_before and not self.with_memory and self.with_nodes:
            position = torch.full_like(nodes, begin)
        else:
            position = _per_root(start, m, own_sources)
        t = _per_root(events.t, m, own_sources) if self.fanouts else torch.zeros_like(nodes)
        return Frontier(nodes, t, position)


def _count_history(graph: TemporalGraph, counts: Sequence[Count] | CountHistory) -> CountHistory:
    if not isinstance(counts, CountHistory):
        return CountHistory(graph, counts)
    if counts.graph is not graph:
        raise ValueError("counts must be of the plan's graph, got those of another graph")
    return counts


def for_each_negative(column: Tensor, m: int) -> Tensor:
    """Return a value of each event for each of its negatives, `[B, m]`."""
    return column.unsqueeze(1).expand(-1, m)


def _per_root(column: Tensor, m: int, own_sources: bool) -> Tensor:
    """Repeat a column of the events for the roots: sources, destinations and `m` negatives each."""
    repeated = column if m == 1 else column.repeat_interleave(m)
    return torch.cat([column, column, repeated] + ([] if own_sources else [repeated]))


def _check(batch_size: int, fanouts: Sequence[int], visibility: str, slices: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1 event, got {batch_size}")
    if any(k < 1 for k in fanouts):
        raise ValueError(f"fanouts must be at least 1 neighbor each, got {tuple(fanouts)}")
    if visibility not in get_args(Visibility):
        raise ValueError(f"visibility must be event or batch, got {visibility!r}")
    if slices < 1:
        raise ValueError(f"slices must be at least 1, got {slices}")
