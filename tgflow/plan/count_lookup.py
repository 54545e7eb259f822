"""Counts and last events of the past, looked up on the host for each drawn batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from tgflow.graph import EventLog, TemporalGraph
from tgflow.graph.counts import Count, Number, number
from tgflow.graph.events import EventBatch
from tgflow.graph.log import BySince
from tgflow.plan._native import Clock, CountOf, EventCounts, Op


class CountedPairs(NamedTuple):
    """Pairs whose past is counted: `B` events, and `m` negatives of each."""

    events: EventBatch
    """The events; their negatives have their relations."""
    negative_src: Tensor | None
    """Sources of their negatives, int64 `[B, m]`; None: the events' own."""
    negative_dst: Tensor
    """Their destinations, int64 `[B, m]`."""
    limit: Tensor
    """Log positions, int64 `[B]`, none of them past `stop`: events before them count."""
    stop: int
    """Log position at which the batch ends."""


class HeldCounts:
    """The core's counts from any beginning of the horizon on; thread-safe.

    The same ones, if nothing that they keep depends on the beginning: they drop events that the log
    forgot. Else new ones for each beginning, which read its events again, by `make(first=...)`.
    """

    span = 1 << 30
    """Positions that the same counts are for at most: they hold 2^31."""

    def __init__(self, log: EventLog, make: Callable[..., EventCounts]) -> None:
        self._log, self._make, self._lock = log, make, threading.Lock()
        self._latest: EventCounts | None = None

    def at(self, since: int) -> EventCounts:
        """Return counts that answer about the events from a log position on."""
        first, since = self._log.first, max(since, self._log.first)
        with self._lock:
            held = self._latest
            if (
                held is not None
                and held.is_for_any_since
                and len(held) >= first
                and held.first <= since < held.first + self.span
            ):
                return held
            self._latest = made = self._make(first=since)
            return made


class CountHistory:
    """Counts of past events of pairs, as of any position of a graph's log.

    Reads further in the log when a query requires it, and is not saved in checkpoints. Thread-safe.
    An answer about the first `n` events never changes.

    Args:
        graph: Graph whose log to follow; not modified. Of a shard only the counts of its nodes and
            keys are kept, and all ranks ask together: `tgflow.ranks.sharded_counts.ShardedCounts`.
        counts: Numbers to compute of every pair, from counts that are kept.
        first: Log position of the first event that counts.
        held: Counts of the core of another history of these; None: new ones.

    Raises:
        ValueError: If there are counts, and events have been deleted from the graph.
    """

    def __init__(
        self,
        graph: TemporalGraph,
        counts: Sequence[Number],
        first: int = 0,
        held: HeldCounts | None = None,
    ) -> None:
        self.asked = tuple(map(number, counts))
        first = max(first, graph.log.first)
        self.graph, self._first, parts = graph, first, graph.shard.parts
        held = held or HeldCounts(
            graph.log,
            partial(
                EventCounts,
                graph.backend.log,
                *_compiled(self.asked),
                seconds_per_tick=graph.seconds_per_tick,
                first_part=parts.start,
                num_parts=len(parts),
            ),
        )
        self._later = BySince(lambda since: CountHistory(graph, counts, since, held))
        self.native = held.at(first)
        """The core's counts, for other code of the core."""
        self.are_of_relations = any(map(_is_of_relation, self.asked))
        """Whether answers depend on the relations of the events asked about."""
        self.check_deletions()

    def at(self, since: int) -> CountHistory:
        """Return the counts of the events from a log position on."""
        return self if since == self._first or not self.asked else self._later.at(since)

    def answer(
        self,
        events: EventBatch,
        negative_src: Tensor | None,
        negative_dst: Tensor,
        *,
        limit: Tensor,
        stop: int,
    ) -> Tensor:
        """Return all numbers of a batch's pairs, float64 `[B, 1 + m, C]`.

        Counts the events before an event's limit and earlier than its time. The arguments are those
        of `CountedPairs`.

        Raises:
            ValueError: If events have been deleted from the graph, or it is a shard.
        """
        num, m = negative_dst.shape
        self.check_deletions()
        self.native.read_upto(stop)
        out = torch.empty(num, 1 + m, len(self.asked), dtype=torch.float64)
        own = None if negative_src is None else negative_src.contiguous()
        pairs = events.src.contiguous(), events.dst.contiguous(), own, negative_dst.contiguous()
        relation = None if events.relation is None else events.relation.contiguous()
        asked = *pairs, events.t.contiguous(), limit.contiguous(), out, relation
        self.native.answer(*asked, since=self._first)
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.native.bytes

    def figures(self, position: int) -> dict[str, int]:
        """Return `counts_bytes` for a result, those of this rank; an empty dict without counts.

        Args:
            position: Events to read first, also in a run without events to learn; of a shard none.
        """
        if not self.asked:
            return {}
        within = self.at(self.graph.since(position))
        if self.graph.shard.world == 1:
            within.native.read_upto(position)
        return {"counts_bytes": within.nbytes}

    def check_deletions(self) -> None:
        """Raise ValueError if there are counts and events have been deleted from the graph."""
        if self.asked and any(m.kind.startswith("delete") for m in self.graph.mutations):
            raise ValueError(
                "events have been deleted from the graph, and counts of past events count them; "
                "use a graph without deletions, or a plan without counts (a model with "
                "pair_features=())"
            )


class LastEvents:
    """The last events of pairs and of nodes, as of any position of a graph's log.

    Reads further in the log when a query requires it. Takes some 15 bytes an event, and as many for
    each new pair.
    """

    def __init__(self, log: EventLog) -> None:
        kinds = [(kind, 1, 0.0, Clock.seconds) for kind in (CountOf.pair, CountOf.src, CountOf.dst)]
        make = partial(EventCounts, log.native, kinds, [], [])
        self._held = HeldCounts(log, make)

    def before(self, src: Tensor, dst: Tensor, cut: Tensor, num: int, since: int = 0) -> Tensor:
        """Return the last `num` events of each list before a cut-off, int64 `[N, 4, num]`.

        The lists are of the pair, of the pair the other way round, of the source and of the
        destination: newest first, and -1 where there are no more. Events from the log position
        `since` on count. IndexError if a cut-off is past the log's end.
        """
        native = self._held.at(since)
        if len(cut):
            native.read_upto(int(cut.max()))
        out = torch.empty(len(src), 4, num, dtype=torch.int64)
        since = min(since, len(native))
        native.last_events(src.contiguous(), dst.contiguous(), cut.contiguous(), out, since)
        return out


_CountArg: TypeAlias = tuple[CountOf, int, float, Clock]
_StepArg: TypeAlias = tuple[Op, int, int, int, float]


def _compiled(numbers: Sequence[Number]) -> tuple[list[_CountArg], list[_StepArg], list[int]]:
    """Return the core's counts, the steps that compute numbers, and the step of each number."""
    counts: dict[Count, int] = {}
    steps: list[_StepArg] = []
    places: dict[Number, int] = {}

    def place(each: Number) -> int:
        if each in places:
            return places[each]
        of = [place(operand) for operand in each.args]
        if each.count is not None:
            of = [counts.setdefault(each.count, len(counts))]
        op: Op = getattr(Op, each.op)
        a, b, c = (*of, 0, 0, 0)[:3]
        steps.append((op, a, b, c, each.constant))
        places[each] = len(steps) - 1
        return places[each]

    results = [place(each) for each in numbers]
    given: list[_CountArg] = [
        (getattr(CountOf, x.of), x.depth, x.half_life or 0.0, getattr(Clock, x.clock))
        for x in counts
    ]
    return given, steps, results


def _is_of_relation(each: Number) -> bool:
    is_own = each.count is not None and each.count.of.endswith("relation")
    return is_own or any(map(_is_of_relation, each.args))
