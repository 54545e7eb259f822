"""Negatives of a batch: drawn from a prefix of the log, from a pool, or given for each event."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tgflow.base.choices import NegativeKind
from tgflow.base.describe import described
from tgflow.base.keys import derive_key
from tgflow.base.peers import Shard
from tgflow.graph.ids import NodeIds
from tgflow.graph.log import EventLog
from tgflow.plan._native import EventCounts, PairIndex, choose_positions


class PairHistory:
    """Distinct destinations and (src, dst) pairs of every prefix of a log.

    Reads further in the log when a query requires it, and pairs only if one is about them. Takes 24
    bytes a destination, and 48 a pair. Thread-safe. An answer about the first `n` events never
    changes.

    Args:
        log: Log to follow; not modified. None: the events passed to `append`, without pairs.
        types: Types of nodes, as `EventLog.node_types`; None: those of the log.
        shard: Keep the table of the pairs of a rank's sources only, `peers.shard`; all ranks read
            pairs together, by `tgflow.ranks.sharded_counts.read_pairs`. None: all pairs.
    """

    def __init__(
        self,
        log: EventLog | None = None,
        types: Callable[[Tensor], Tensor] | None = None,
        shard: Shard | None = None,
    ) -> None:
        parts = (Shard() if shard is None else shard).parts
        self.native = PairIndex(None if log is None else log.native, parts.start, len(parts))
        """The core's index."""
        self._log, self._own_types = log, types
        self._counts: EventCounts | None = None
        self._growing = threading.Lock()

    def __len__(self) -> int:
        return len(self.native)

    def append(self, src: Tensor, dst: Tensor) -> None:
        """Read on: sources and destinations of the next events, int64 `[N]`."""
        dst, types = dst.contiguous(), self._types
        self.native.append(src.contiguous(), dst, None if types is None else types(dst))

    @property
    def _types(self) -> Callable[[Tensor], Tensor] | None:
        if self._own_types is not None or self._log is None:
            return self._own_types
        return self._log.node_types

    def are_alike(self, dst: Tensor, others: Tensor) -> Tensor | None:
        """Return which destinations have the type of which others, bool `[B, N]`; None if all.

        Args:
            dst: Destinations among the events read, int64 `[B]`.
            others: Others, int64 `[N]`.
        """
        if self._types is None:
            return None
        own, there = torch.empty_like(dst), torch.empty_like(others)
        self.native.types(dst.contiguous(), own)
        self.native.types(others.contiguous(), there)
        return own.unsqueeze(1) == there

    def upto(self, position: int, *, pairs: bool = False) -> Self:
        """Return itself, having read at least the first `position` events.

        Args:
            position: Number of events.
            pairs: Whether to read their pairs too, as `num_pairs`, `destinations_of` and draws of
                pairs require.

        Raises:
            ValueError: If the log has fewer, or its pairs must be read by all ranks together.
        """
        log, native = self._log, self.native
        if log is None or position <= (native.num_pair_events if pairs else len(self)):
            return self
        with self._growing:
            if position > len(log):
                raise ValueError(f"position {position} is past the log's end, {len(log)} events")
            if len(self) < position:
                events = log.read(len(self), position)
                self.append(events.src, events.dst)
            if pairs and native.num_pair_events < position:
                native.read_pairs(position)
        return self

    def num_destinations(self, before: int) -> int:
        """Return the number of distinct destinations of the first `before` events."""
        return self.native.num_destinations(before)

    def num_pairs(self, before: int) -> int:
        """Return the number of distinct pairs of the first `before` events."""
        return self.native.num_pairs(before)

    def destinations(self, before: int) -> Tensor:
        """Return the distinct destinations of the first `before` events, int64 `[D]`.

        In the order of their first events.

        Raises:
            ValueError: If fewer events have been read.
        """
        out = torch.empty(self.num_destinations(before), dtype=torch.int64)
        self.native.destinations(before, out)
        return out

    def destinations_of(self, src: int, before: int) -> Tensor:
        """Return the distinct destinations of one source, as `destinations`, int64 `[D]`.

        The first call scans all pairs once, later calls only new ones; takes 8 bytes a pair from
        then on.

        Raises:
            ValueError: If fewer events have been read, or `src` cannot be a node id.
        """
        return torch.tensor(self.native.destinations_of(src, before), dtype=torch.int64)

    def draw_destinations(
        self,
        key: int,
        src: Tensor,
        dst: Tensor,
        cut: Tensor,
        num: int,
        limit: int,
        *,
        collide: bool,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, int]:
        """Return `num` destinations for each event, `[B, num]`, and how many are fallbacks.

        Destinations were seen before the event's `cut`; fallbacks before `limit`. With types both
        have the type of the event's destination, or else are fallbacks of any type. Slots outside
        of `mask` repeat the event's destination.
        """
        out = torch.empty(len(src), num, dtype=torch.int64)
        return out, self.native.draw_destinations(key, src, dst, cut, limit, collide, mask, out)

    def latest_destinations(
        self, src: Tensor, cut: Tensor, num_source: int, num_recent: int
    ) -> tuple[Tensor, Tensor]:
        """Return the last distinct destinations of sources, and of all events, before cut-offs.

        The first call reads the whole log once more; takes some 12 bytes an event from then on.

        Args:
            src: Sources, int64 `[B]`.
            cut: Log positions, int64 `[B]`.
            num_source: Destinations of each source, `n`; its last 8 `n` events are searched.
            num_recent: Destinations of all events, `m`; the last 8 `m` events are searched.

        Returns:
            int64 `[B, n]` and `[B, m]`: the last one first, `NO_NODE` where there are no more.

        Raises:
            IndexError: If a cut-off is past the log's end.
        """
        with self._growing:
            if self._counts is None:
                assert self._log is not None, "a pool has no order"
                self._counts = EventCounts(self._log.native, [], [], [], True)
        if len(cut):
            self._counts.read_upto(int(cut.max()))
        own, recent = (
            torch.empty(len(src), num, dtype=torch.int64) for num in (num_source, num_recent)
        )
        self._counts.latest_destinations(src.contiguous(), cut.contiguous(), own, recent)
        return own, recent


@dataclass(frozen=True, slots=True, eq=False)
class Negatives:
    """`m` negatives for each of `B` events."""

    src: Tensor
    """int64 `[B, m]`."""
    dst: Tensor
    """int64 `[B, m]`."""
    num_fallbacks: int
    """Negatives of another kind than requested, where no candidate was eligible."""
    own_sources: bool
    """Whether all have their events' sources."""
    mask: Tensor | None = None
    """bool `[B, m]`: which slots are negatives, where some rows have fewer than `m`; None: all.
    Other slots repeat the event itself."""
    log_q: Tensor | None = None
    """float32 `[B, m]`, as `Batch.log_q`."""

    def followed_by(
        self, others: Tensor, dst: Tensor, are_alike: Tensor | None = None
    ) -> Negatives:
        """Return the first negative of each event, and then all other nodes.

        Args:
            others: Nodes, int64 `[N]`, distinct. The event's own and the first negative are masked.
            dst: Destinations of the events, int64 `[B]`.
            are_alike: Which other nodes are negatives of which events, bool `[B, N]`; None: all.
        """
        first, own = self.dst[:, :1], dst.unsqueeze(1)
        is_other = (others != own) & (others != first)
        if are_alike is not None:
            is_other &= are_alike
        mask = torch.cat([torch.ones_like(first, dtype=torch.bool), is_other], dim=1)
        src = self.src[:, :1].expand_as(mask)
        nodes = torch.cat([first, others.where(is_other, own)], dim=1)
        return Negatives(src, nodes, 0, own_sources=self.own_sources, mask=mask)

    def part(self, rows: slice | Tensor, num: int | None = None) -> Negatives:
        """Return the first `num` negatives of the events in `rows`; None: all of theirs."""
        mask = None if self.mask is None else self.mask[rows, :num]
        log_q = None if self.log_q is None else self.log_q[rows, :num]
        src, dst = self.src[rows, :num], self.dst[rows, :num]
        return Negatives(src, dst, 0, own_sources=self.own_sources, mask=mask, log_q=log_q)


class NegativeSource(Protocol):
    """Base protocol of sources of negatives."""

    @property
    def num(self) -> int:
        """Negatives per event, `m`."""
        ...

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return `num` negatives per event, a pure function; see `NegativeSampler.draw`."""
        ...


@described
@dataclass(frozen=True, slots=True)
class NegativeSampler:
    """Draws negatives, as a pure function of a key and of a prefix of the log.

    * `random`: the event's source with a destination known before the cut, uniformly over the
      distinct ones, never the event's own destination unless they may `collide`.
    * `historical`: a (src, dst) pair that occurred before the cut, uniformly over the distinct
      pairs, none of them an event of the batch. The source is replaced too, as in DyGLib.
      Pairs are of any types of nodes.
    * `inductive`: the same over the pairs first seen at or after position `since`.

    Where no pair is eligible the negative is a random one; where no destination but the event's
    own is known before the cut, it is drawn from the destinations known at the end of the batch,
    then from the sources known there. Those are counted as fallbacks. Where the log has
    `node_types`, random destinations have the type of the event's own; if none of its type is known
    at the end of the batch, the negative is of any type, and a fallback.

    Args:
        kind: Kind of negatives, one of the three.
        num: Negatives per event, at least 1.
        cut: The log position before which candidates must have been seen. None is the start of the
            batch that an event belongs to (continual learning); the end of the log is the
            published offline protocol, which takes every destination as known.
        since: Position from which on inductive pairs were first seen: where training ended, or what
            was evaluated before. Needed for `inductive`, unused otherwise.
        collide: `random`: whether a negative may be the event itself, as with DyGLib's.
        replace: `historical` and `inductive`: whether the n-th negatives of two events of a batch
            may be the same pair. Without, they are random ones once the pairs are used up.
        every: One event of each this many consecutive ones has all negatives, chosen by a hash of
            its position; the others have the first one. Not for replayed events.
        among_all: `random`: whether `Plan.part` returns all destinations known before the cut as
            negatives, the first one drawn; whole batches have `num`. If none is known before,
            those known at the end of the batch.
        filtered: `among_all`: whether parts leave out the destinations of other events of the log
            with the source, relation and time of the event, also later in the log: they are true.

    Raises:
        ValueError: If an argument is out of range, does not fit `kind`, or `since` is missing.

    Example:
        >>> drawn = tg.Plan.for_model(model, graph, negatives=tg.plan.NegativeSampler(num=3))
        >>> drawn.batch(0, 0).negative_dst.shape
        torch.Size([4, 3])
    """

    kind: NegativeKind = "random"
    num: int = 1
    cut: int | None = None
    since: int | None = None
    collide: bool = False
    replace: bool = True
    every: int = 1
    among_all: bool = False
    filtered: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(NegativeKind):
            raise ValueError(
                f"negatives must be one of {', '.join(get_args(NegativeKind))}, got {self.kind!r}"
            )
        if self.num < 1:
            raise ValueError(f"num must be at least 1 negative per event, got {self.num}")
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")
        if self.cut is not None and self.cut < 0:
            raise ValueError(f"cut must be a log position of at least 0, got {self.cut}")
        if self.kind == "inductive" and self.since is None:
            raise ValueError(
                "inductive negatives need since, the position from which on pairs count as new"
            )
        if self.collide and self.kind != "random":
            raise ValueError(f"only random negatives may collide, got collide with {self.kind!r}")
        if self.among_all and (self.kind != "random" or self.collide):
            raise ValueError("among_all is for random negatives that do not collide")
        if self.filtered and not self.among_all:
            raise ValueError("filtered leaves true destinations out of all: it needs among_all")
        if not self.replace and self.kind == "random":
            raise ValueError("random negatives are drawn with replacement, got replace=False")

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return `num` negatives per event (src, dst).

        Args:
            history: Destinations and pairs of the log; reads on in the log if needed.
            key: Key of the batch; see `tgflow.base.keys`.
            src: Sources, int64 `[B]`.
            dst: Destinations, int64 `[B]`.
            start: Log position at which each event's batch started, int64 `[B]`; for a source with
                `follows_visibility`, before which the event sees the log.
            stop: Log position at which the batch ends.

        Raises:
            ValueError: If an event has no candidate: its destination is the only node known
                at the end of the batch; or if `cut` is past the log's end.
        """
        limit = self.limit(stop)
        index = history.upto(limit, pairs=self.draws_pairs)
        cut = start if self.cut is None else torch.full_like(start, self.cut)
        mask = self.mask(stop - len(src), stop)
        if self.kind == "random":
            out_dst, fallbacks = index.draw_destinations(
                key, src, dst, cut, self.num, limit, collide=self.collide, mask=mask
            )
            out_src = src.unsqueeze(1).expand(-1, self.num)
        else:
            out_src, out_dst = torch.empty(2, len(src), self.num, dtype=torch.int64).unbind(0)
            fallbacks = index.native.draw_pairs(
                key, src, dst, cut, limit, self.pairs_from, self.replace, out_src, out_dst
            )
            if mask is not None:
                out_src = out_src.where(mask, src.unsqueeze(1))
                out_dst = out_dst.where(mask, dst.unsqueeze(1))
        return Negatives(out_src, out_dst, fallbacks, own_sources=self.kind == "random", mask=mask)

    def mask(self, begin: int, end: int) -> Tensor | None:
        """Return which negatives the events `[begin, end)` have, bool `[B, num]`; None: all."""
        if self.every == 1 or self.num == 1:
            return None
        mask = torch.zeros(end - begin, self.num, dtype=torch.bool)
        mask[:, 0] = True
        mask[chosen_events(begin, end, self.every)] = True
        return mask

    def all_known(self, history: PairHistory, begin: int, stop: int) -> Tensor:
        """Return all destinations that count as known for a batch `[begin, stop)`, int64 `[N]`."""
        before = begin if self.cut is None else self.cut
        index = history.upto(self.limit(stop))
        return index.destinations(before if index.num_destinations(before) else stop)

    @property
    def draws_pairs(self) -> bool:
        """Whether it draws pairs of the past, which the history must have read."""
        return self.kind != "random"

    def limit(self, stop: int) -> int:
        """Return the number of events needed to draw for a batch that ends at `stop`."""
        return stop if self.cut is None else max(stop, self.cut)

    @property
    def pairs_from(self) -> int:
        """The log position from which on drawn pairs were first seen."""
        return self.since or 0 if self.kind == "inductive" else 0


def chosen_events(begin: int, end: int, every: int) -> Tensor:
    """Return which events of `[begin, end)` are the chosen ones of each `every`, bool `[N]`."""
    is_chosen = torch.empty(end - begin, dtype=torch.bool)
    choose_positions(begin, every, is_chosen)
    return is_chosen


class PooledNegatives:
    """Draws the destination from a given pool, uniformly over distinct nodes; keeps the source.

    Args:
        pool: The destinations, int64 `[N]`, at least one; duplicates count once.
        num: Negatives per event, at least 1.
        collide: Whether a negative may be the event itself.
        types: Types of nodes, as `EventLog.node_types`; None: all have one type.

    Raises:
        ValueError: If the pool is empty.
    """

    def __init__(
        self,
        pool: Tensor,
        num: int = 1,
        *,
        collide: bool = False,
        types: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if not len(pool):
            raise ValueError("negatives need a pool of at least one destination, got none")
        self.num = num
        self._collide = collide
        self._index = PairHistory(types=types)
        self._index.append(pool, pool)

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return `num` negatives per event; `history`, `start` and `stop` are ignored.

        Raises:
            ValueError: If the pool holds only the event's destination, and `collide` is off.
        """
        size = len(self._index)
        cut = torch.full_like(src, size)
        drawn = self._index.draw_destinations(
            key, src, dst, cut, self.num, size, collide=self._collide
        )
        return Negatives(src.unsqueeze(1).expand(-1, self.num), *drawn, own_sources=True)


@described
@dataclass(frozen=True, slots=True)
class MixedNegatives:
    """Lists of distinct destinations to choose each event from: random ones, then hard ones.

    * `random`: drawn without replacement, uniformly over the destinations known before the cut-off
      that are not among the others.
    * `source`: the last distinct destinations of the event's source.
    * `recent`: the last distinct destinations of all events.

    The last `n` are those of the last 8 `n` events. The source is the event's own, and no negative
    is the event itself. The cut-off is that of the event's neighbors: with visibility `event` the
    events earlier than its time, with `batch` of those the ones before its batch. Where there are
    fewer destinations, slots are masked. With `EventLog.node_types` all have the type of the
    event's destination.

    `Negatives.log_q` corrects the logits in `tgflow.train.losses.softmax`: random negatives stand
    for all the destinations that were not drawn, so the expectation of the sum over a list is the
    sum over all known destinations.

    Args:
        random: Random destinations per event.
        source: Last destinations of its source.
        recent: Last destinations of all.
        cut: The log position before which random destinations must have been seen; None: the
            event's cut-off. For a log whose destinations all count as known.
        pool: History to draw random destinations from, all of it; None: that of the plan.

    Raises:
        ValueError: If a number is negative, or all are 0.

    Example:
        >>> drawn = tg.plan.MixedNegatives(random=2, source=1, recent=1)
        >>> batch = tg.Plan.for_model(model, graph, negatives=drawn).batch(0, 0)
        >>> batch.negative_dst.shape, batch.log_q.shape
        (torch.Size([4, 4]), torch.Size([4, 4]))
    """

    follows_visibility: ClassVar[bool] = True
    """Whether `draw` takes the cut-offs of the events instead of the starts of their batches."""

    random: int = 0
    source: int = 0
    recent: int = 0
    cut: int | None = None
    pool: PairHistory | None = None

    def __post_init__(self) -> None:
        numbers = {"random": self.random, "source": self.source, "recent": self.recent}
        for name, number in numbers.items():
            if number < 0:
                raise ValueError(f"{name} must be at least 0 negatives per event, got {number}")
        if not self.num:
            raise ValueError(f"a list needs at least one of {', '.join(numbers)}, got none")

    @property
    def num(self) -> int:
        """Negatives per event."""
        return self.random + self.source + self.recent

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return the list of each event; see `NegativeSampler.draw`.

        `start` has the cut-off of each event.
        """
        limit = stop if self.cut is None else max(stop, self.cut)
        if self.pool is None:
            index = history.upto(limit)
            cut = start if self.cut is None else torch.full_like(start, self.cut)
        else:
            index, limit = self.pool, len(self.pool)
            cut = torch.full_like(start, limit)
        hard = torch.empty(len(src), 0, dtype=torch.int64)
        if self.source or self.recent:
            last = history.latest_destinations(src, start, self.source, self.recent)
            hard = torch.cat(last, dim=1)
        out = torch.empty(len(src), self.num, dtype=torch.int64)
        log_q = torch.empty(len(src), self.num)
        index.native.draw_lists(key, src, dst, cut, limit, hard, out, log_q)
        mask = log_q > -torch.inf
        return Negatives(
            src.unsqueeze(1).expand(-1, self.num),
            out,
            0,
            own_sources=True,
            mask=None if bool(mask.all()) else mask,
            log_q=log_q,
        )


class NegativesOfBoth:
    """Negatives of two sources side by side: first those of one, then those of the other.

    The negatives of the first are the same as without the second.

    Args:
        first: Source of the first `first.num` columns.
        second: Source of the others.
    """

    def __init__(self, first: NegativeSource, second: NegativeSource) -> None:
        self.num = first.num + second.num
        self.first, self._second = first, second
        self.draws_pairs = any(getattr(each, "draws_pairs", False) for each in (first, second))

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return the negatives of both per event; see `NegativeSampler.draw`."""
        left = self.first.draw(history, key, src, dst, start=start, stop=stop)
        right = self._second.draw(history, derive_key(key, 2), src, dst, start=start, stop=stop)
        return Negatives(
            torch.cat([left.src, right.src], dim=1),
            torch.cat([left.dst, right.dst], dim=1),
            left.num_fallbacks + right.num_fallbacks,
            own_sources=left.own_sources and right.own_sources,
            mask=_joined(left, right),
        )


def _joined(left: Negatives, right: Negatives) -> Tensor | None:
    """Return the masks of two negatives side by side; None if neither has one."""
    if left.mask is None and right.mask is None:
        return None
    masks = (
        torch.ones_like(each.dst, dtype=torch.bool) if each.mask is None else each.mask
        for each in (left, right)
    )
    return torch.cat([*masks], dim=1)


_CAUSE = "check that the data set has the same version, and was read without a limit or sorting"


class FixedNegatives:
    """Fixed negatives per event: the event's source with given destinations.

    The number may differ between events: rows are padded to the longest, and `Negatives.mask`
    marks the negatives.

    Args:
        first_eid: Log position of the first event that has negatives; the others follow it.
        start: Start of the negatives of each event in `dst`, int64 `[n + 1]`, never decreasing;
            the last entry is the end.
        dst: Nodes, int64 `[M]`.

    Raises:
        ValueError: If the arguments do not fit together.
    """

    def __init__(self, first_eid: int, start: Tensor, dst: Tensor) -> None:
        if not len(start) or int(start[0]) != 0 or int(start[-1]) != len(dst):
            raise ValueError(f"start must go from 0 to the {len(dst)} negatives that there are")
        counts = start.diff()
        if bool((counts < 0).any()):
            raise ValueError("start must never decrease")
        self.first_eid, self.start, self.dst = first_eid, start, dst
        self.num = max(1, int(counts.max())) if len(counts) else 1
        self._is_ragged = bool((counts != self.num).any())

    def __len__(self) -> int:
        """Return the number of events that have negatives."""
        return len(self.start) - 1

    @classmethod
    def load(cls, path: Path, ids: NodeIds, first_eid: int) -> FixedNegatives:
        """Load the file that `tgflow convert tgb` wrote.

        Args:
            path: The file, NAME.val.negatives.safetensors or NAME.test.negatives.safetensors.
            ids: Node ids of the stream, all of which has been read.
            first_eid: Log position of the first event of that part.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file has another format, or a node that the stream does not have.
        """
        try:
            with safe_open(path, framework="np") as file:
                start, dst = (_column(file, name) for name in ("start", "dst"))
        except SafetensorError as error:
            raise ValueError(f"{path} is not a file of negatives: {error!s:.100}") from None
        found = ids.find(dst, "dst")
        if bool((found < 0).any()):
            unknown = int(dst[int((found < 0).nonzero()[0])])
            raise ValueError(f"{path}: node {unknown} is not in the stream; {_CAUSE}")
        return cls(first_eid, start, found)

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return the negatives of the events before `stop`, without random draws.

        Raises:
            ValueError: If an event has no negatives, or events are replayed.
        """
        row = torch.arange(stop - len(src), stop) - self.first_eid
        if len(start) and int(start[0]) > stop - len(src):
            raise ValueError("fixed negatives are of new events; they have none for replayed ones")
        outside = (row < 0) | (row >= len(self))
        if bool(outside.any()):
            eid = int(row[outside][0]) + self.first_eid
            last = self.first_eid + len(self)
            raise ValueError(
                f"event {eid} has no fixed negatives, which are of events {self.first_eid} to "
                f"{last - 1}; {_CAUSE}"
            )
        place = self.start[row].unsqueeze(1) + torch.arange(self.num)
        mask = place < self.start[row + 1].unsqueeze(1)
        found = self.dst[place.clamp_(max=max(0, len(self.dst) - 1))] if len(self.dst) else place
        return Negatives(
            src.unsqueeze(1).expand(-1, self.num),
            torch.where(mask, found, dst.unsqueeze(1)),
            0,
            own_sources=True,
            mask=mask if self._is_ragged else None,
        )


def _column(file: Any, name: str) -> Tensor:
    values = np.asarray(file.get_tensor(name))
    if values.dtype != np.int64 or values.ndim != 1:
        raise ValueError(f"{name} must be a list of int64, got {values.dtype} {values.shape}")
    return torch.from_numpy(values)
