"""Negatives of a batch: drawn from a prefix of the log, from a pool, or given for each event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tgflow.base.choices import NegativeKind
from tgflow.base.describe import described
from tgflow.base.keys import derive_key
from tgflow.base.peers import Shard
from tgflow.graph.events import NO_NODE
from tgflow.graph.ids import NodeIds
from tgflow.graph.log import BySince, EventLog
from tgflow.graph.sampling.rows import check_returned, refuse_returned
from tgflow.plan._native import EventCounts, PairIndex, choose_positions
from tgflow.plan.count_lookup import HeldCounts


class PairHistory:
    """Distinct destinations and (src, dst) pairs of every prefix of a log.

    Reads further in the log when a query requires it, and pairs only if one is about them. Takes 24
    bytes a destination, 36 a pair and 4 an event. Thread-safe. An answer about the first `n` events
    never changes.

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
        native = None if log is None else log.native
        self.native = PairIndex(native, parts.start, len(parts))
        """The core's index."""
        self._since = 0
        self._later = BySince(self._from)
        self._log, self._own_types = log, types
        self._counts: HeldCounts | None = None
        if log is not None:
            self._counts = HeldCounts(log, partial(EventCounts, log.native, [], [], [], True))
        self._growing = threading.Lock()

    def _from(self, since: int) -> PairHistory:
        later = copy(self)
        later.native, later._since = PairIndex(self.native, since), since
        later._growing = threading.Lock()
        return later

    @classmethod
    def of_pool(cls, dst: Tensor, types: Callable[[Tensor], Tensor] | None = None) -> Self:
        """Return a history of given destinations, int64 `[N]`, at least one; each counts once."""
        if not len(dst):
            raise ValueError("negatives need a pool of at least one destination, got none")
        pool = cls(types=types)
        pool.append(dst, dst)
        return pool

    def at(self, since: int) -> PairHistory:
        """Return the history of the events from a log position on."""
        return self if since == self._since else self._later.at(since)

    def __len__(self) -> int:
        return len(self.native)

    def append(self, src: Tensor, dst: Tensor) -> None:
        """Read on: sources and destinations of the next events, int64 `[N]`."""
        dst, types = dst.contiguous(), self.types
        self.native.append(src.contiguous(), dst, None if types is None else types(dst))

    @property
    def types(self) -> Callable[[Tensor], Tensor] | None:
        """Returns the types of nodes; None: all have one."""
        if self._own_types is not None or self._log is None:
            return self._own_types
        return self._log.node_types

    def are_alike(self, dst: Tensor, others: Tensor) -> Tensor | None:
        """Return which of `dst` `[B]` have the type of which others `[N]`, bool; None if all."""
        if self.types is None:
            return None
        own, there = torch.empty_like(dst), torch.empty_like(others)
        self.native.types(dst.contiguous(), own)
        self.native.types(others.contiguous(), there)
        return own.unsqueeze(1) == there

    def upto(self, position: int, *, pairs: bool = False) -> Self:
        """Return itself, having read at least the first `position` events.

        With `pairs` their pairs too, as `destinations_of` and draws of pairs require. ValueError if
        the log has fewer, or its pairs must be read by all ranks together.
        """
        log, native = self._log, self.native
        if log is None or position <= (native.num_pair_events if pairs else len(native)):
            return self
        with self._growing:
            if position > len(log.native):
                raise ValueError(f"position {position} is past the log's end, {len(log)} events")
            if (begin := len(native)) < position:
                types = self.types
                given = None if types is None else types(log.read(begin, position).dst)
                native.read(position, given)
            if pairs and native.num_pair_events < position:
                native.read_pairs(position)
        return self

    def num_destinations(self, before: int) -> int:
        """Return the number of distinct destinations of the first `before` events."""
        return self.native.num_destinations(before)

    def destinations(self, before: int) -> Tensor:
        """Return the distinct destinations of the first `before` events, int64 `[D]`.

        In the order of their first events. ValueError if fewer events have been read.
        """
        out = torch.empty(self.num_destinations(before), dtype=torch.int64)
        self.native.destinations(before, out)
        return out

    def destinations_of(self, src: int, before: int) -> Tensor:
        """Return the distinct destinations of one source, as `destinations`, int64 `[D]`.

        The first call scans all pairs once, later calls only new ones; takes 8 bytes a pair from
        then on.
        """
        return torch.tensor(self.native.destinations_of(src, before), dtype=torch.int64)

    def first_meetings(self, begin: int, end: int) -> Tensor:
        """Return which events of `[begin, end)` are the first of their pair, bool `[N]`.

        None of the pair is earlier, of those that count. Reads pairs on.
        """
        return torch.from_numpy(self.native.first_meetings(begin, end))

    def latest_destinations(
        self, src: Tensor, cut: Tensor, num_source: int, num_recent: int
    ) -> tuple[Tensor, Tensor]:
        """Return the last distinct destinations of sources, and of all events, before cut-offs.

        The first call reads the log once more; takes some 12 bytes an event from then on.

        Args:
            src: Sources, int64 `[B]`.
            cut: Log positions, int64 `[B]`, at most the log's end.
            num_source: Destinations of each source, `n`; its last 8 `n` events are searched.
            num_recent: Destinations of all events, `m`; the last 8 `m` events are searched.

        Returns:
            int64 `[B, n]` and `[B, m]`: the last one first, `NO_NODE` where there are no more.
        """
        assert self._counts is not None, "a pool has no order"
        counts = self._counts.at(self._since)
        if len(cut):
            counts.read_upto(int(cut.max()))
        own, recent = (
            torch.empty(len(src), num, dtype=torch.int64) for num in (num_source, num_recent)
        )
        since = min(self._since, len(counts))
        counts.latest_destinations(src.contiguous(), cut.contiguous(), own, recent, since)
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

    @classmethod
    def of_own(
        cls,
        src: Tensor,
        dst: Tensor,
        found: Tensor,
        mask: Tensor | None,
        log_q: Tensor | None = None,
    ) -> Negatives:
        """Return negatives `[B, m]` of the events' own sources."""
        found = found if mask is None else found.where(mask, dst.unsqueeze(1))
        sources = src.unsqueeze(1).expand_as(found)
        return cls(sources, found, 0, own_sources=True, mask=mask, log_q=log_q)

    def followed_by(
        self, others: Tensor, dst: Tensor, are_alike: Tensor | None = None
    ) -> Negatives:
        """Return the first negative of each event of `dst` `[B]`, and then all other nodes `[N]`.

        The event's own and the first negative are masked, and those that are not alike, `[B, N]`.
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


@described
@dataclass(frozen=True, slots=True)
class NegativeSampler:
    """Draws a mix of negatives, as a pure function of a key and of a prefix of the log.

    * `random`: the event's source with a destination known before the cut, uniformly over the
      distinct ones, never the event's own destination unless they may `collide`.
    * `source`: the last distinct destinations of the event's source.
    * `recent`: the last distinct destinations of all events.
    * `historical`: a (src, dst) pair that occurred before the batch, uniformly over the distinct
      pairs, none of them an event of the batch. The source is replaced too, as in DyGLib.
      Pairs are of any types of nodes.
    * `inductive`: the same over the pairs first seen at or after position `since`.

    The columns are in this order. Negatives of one kind are the same with and without those of the
    kinds after it.

    Where no pair is eligible the negative is a random one; where no destination but the event's
    own is known before the cut, it is drawn from the destinations known at the end of the batch,
    then from the sources known there. Those are counted as fallbacks. Where the log has
    `node_types`, random destinations have the type of the event's own; if none of its type is known
    at the end of the batch, the negative is of any type, and a fallback.

    With `source`, `recent` or `distinct`, each event has a list of distinct destinations, to learn
    to choose it from. Random ones are then drawn without replacement among those not in the rest of
    the list. The last `n` destinations are those of the last 8 `n` events that the event sees: with
    visibility `event` the events earlier than its time, with `batch` of those the ones before its
    batch; that is the cut of random ones, too. No negative is the event itself, and with
    `node_types` all have the type of its destination. Where there are fewer, slots are masked.
    `Negatives.log_q` corrects the logits in `tgflow.train.losses.softmax`: random negatives stand
    for all the destinations that were not drawn, so the expectation of the sum over a list is the
    sum over all known destinations.

    Args:
        random: Random destinations per event.
        source: Last destinations of its source.
        recent: Last destinations of all.
        historical: Pairs of the past per event.
        inductive: New pairs of the past per event.
        distinct: Whether the random ones of an event are distinct, with `log_q`.
        cut: The log position before which random destinations must have been seen. None is the
            start of the batch that an event belongs to (continual learning); the end of the log is
            the published offline protocol, which takes every destination as known.
        pool: Random destinations are drawn from all of these, see `PairHistory.of_pool`; None: from
            the log.
        since: Position from which on inductive pairs were first seen: where training ended, or what
            was evaluated before. Needed for `inductive`, unused otherwise.
        apart: Whether `source` and `recent` are the last columns, as of the batch's start, beside
            negatives of the other kinds, instead of in a list with random ones.
        collide: Whether a random negative may be the event itself, as with DyGLib's.
        replace: `historical` and `inductive`: whether the n-th negatives of two events of a batch
            may be the same pair. Without, they are random ones once the pairs are used up.
        every: One event of each this many consecutive ones has all negatives, chosen by a hash of
            its position; the others have the first one of each kind. Not for replayed events.
        among_all: Whether `Plan.part` returns all destinations known before the cut as negatives,
            the first random one first; whole batches have those drawn. If none is known before,
            those known at the end of the batch.
        filtered: `among_all`: whether parts leave out the destinations of other events of the log
            with the source, relation and time of the event, also later in the log: they are true.

    Raises:
        ValueError: If a number is negative, all are 0, `since` is missing, or arguments do not fit
            together.

    Example:
        >>> drawn = tg.Plan.for_model(model, graph, negatives=tg.plan.NegativeSampler(random=3))
        >>> drawn.batch(0, 0).negative_dst.shape
        torch.Size([4, 3])
        >>> lists = tg.plan.NegativeSampler(random=2, source=1, recent=1)
        >>> batch = tg.Plan.for_model(model, graph, negatives=lists).batch(0, 0)
        >>> batch.negative_dst.shape, batch.log_q.shape
        (torch.Size([4, 4]), torch.Size([4, 4]))
    """

    random: int = 0
    source: int = 0
    recent: int = 0
    historical: int = 0
    inductive: int = 0
    _: KW_ONLY
    distinct: bool = False
    cut: int | None = None
    pool: PairHistory | None = None
    since: int | None = None
    apart: bool = False
    collide: bool = False
    replace: bool = True
    every: int = 1
    among_all: bool = False
    filtered: bool = False

    def __post_init__(self) -> None:
        names = ("random", "source", "recent", "historical", "inductive")
        numbers = {name: getattr(self, name) for name in names}
        for name, number in numbers.items():
            if number < 0:
                raise ValueError(f"{name} must be at least 0 negatives per event, got {number}")
        if not self.num:
            raise ValueError(f"negatives need at least one of {', '.join(numbers)}, got none")
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")
        if self.cut is not None and self.cut < 0:
            raise ValueError(f"cut must be a log position of at least 0, got {self.cut}")
        if self.inductive and self.since is None:
            raise ValueError(
                "inductive negatives need since, the position from which on pairs count as new"
            )
        if self.apart and (self.distinct or not self.random):
            raise ValueError("apart is for lists beside random negatives that are none themselves")
        if self.is_list and (self.draws_pairs or self.every > 1):
            raise ValueError("lists have negatives of the event's own source, for every event")
        if self.collide and (self.is_list or not self.random):
            raise ValueError("only random negatives may collide, and not those of a list")
        if self.among_all and (self.is_list or not self.random or self.collide):
            raise ValueError("among_all is for random negatives that do not collide")
        if self.filtered and not self.among_all:
            raise ValueError("filtered leaves true destinations out of all: it needs among_all")
        if not self.replace and not self.draws_pairs:
            raise ValueError("random negatives are drawn with replacement, got replace=False")

    @property
    def num(self) -> int:
        """Negatives per event, `m`."""
        return self.random + self.source + self.recent + self.historical + self.inductive

    @property
    def is_list(self) -> bool:
        """Whether each event has a list of distinct destinations, as of what the event sees."""
        return not self.apart and (self.distinct or self.source > 0 or self.recent > 0)

    @property
    def draws_pairs(self) -> bool:
        """Whether it draws pairs of the past, which the history must have read."""
        return self.historical > 0 or self.inductive > 0

    @property
    def single_kind(self) -> NegativeKind | None:
        """The kind of all negatives, drawn independently from the log; None: it is another mix."""
        kinds = [kind for kind, _ in self._kinds()]
        is_mix = self.source + self.recent > 0 or self.distinct or len(kinds) > 1
        return None if is_mix or self.pool is not None else kinds[0]

    def _kinds(self) -> list[tuple[NegativeKind, int]]:
        """Return the kinds drawn independently of each other, and their numbers."""
        numbers: list[tuple[NegativeKind, int]] = [
            ("random", self.random),
            ("historical", self.historical),
            ("inductive", self.inductive),
        ]
        return [(kind, number) for kind, number in numbers if number]

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return `num` negatives per event (src, dst), `[B]`.

        Args:
            history: Destinations and pairs of the log; reads on in the log if needed.
            key: Key of the batch; see `tgflow.base.keys`.
            src: Sources.
            dst: Destinations.
            start: Log position at which each event's batch started; for a list, before which the
                event sees the log.
            stop: Log position at which the batch ends.

        Raises:
            ValueError: If an event has no candidate: its destination is the only node known
                at the end of the batch; or if `cut` is past the log's end.
        """
        if self.is_list:
            return self._lists(history, key, src, dst, start, stop)
        found: list[Negatives] = []
        for kind, num in self._kinds():
            own_key = derive_key(key, 1 + len(found)) if found else key
            mask = self.mask(stop - len(src), stop, num)
            is_random = kind == "random"
            out_src, out_dst = src.unsqueeze(1).expand(-1, num), dst.new_empty(len(dst), num)
            if is_random:
                index, cut, limit = self._known(history, start, stop)
                fallbacks = index.native.draw_destinations(
                    own_key, src, dst, cut, limit, self.collide, mask, out_dst
                )
            else:
                out_src, index = torch.empty_like(out_dst), history.upto(stop, pairs=True)
                since = self.since or 0 if kind == "inductive" else 0
                fallbacks = index.native.draw_pairs(
                    own_key, src, dst, start, stop, since, self.replace, out_src, out_dst
                )
                if mask is not None:
                    out_src = out_src.where(mask, src.unsqueeze(1))
                    out_dst = out_dst.where(mask, dst.unsqueeze(1))
            drawn = Negatives(out_src, out_dst, fallbacks, own_sources=is_random, mask=mask)
            found.append(drawn)
        if self.apart and self.source + self.recent:
            found += self._latest(history, key, src, dst, start, stop)
        return found[0] if len(found) == 1 else _joined(found)

    def _latest(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, start: Tensor, stop: int
    ) -> list[Negatives]:
        """Return the last destinations of the sources, and of all, that are negatives."""
        is_chosen = chosen_events(stop - len(src), stop, self.every).unsqueeze(1)
        index, cut, limit = self._known(history, start, stop)
        found = []
        for hard in history.latest_destinations(src, start, self.source, self.recent):
            out, log_q = torch.empty_like(hard), torch.empty(hard.shape)
            index.native.draw_lists(key, src, dst, cut, limit, hard, out, log_q)
            mask = (log_q > -torch.inf) & is_chosen
            found.append(Negatives.of_own(src, dst, out, mask))
        return found

    def _lists(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, start: Tensor, stop: int
    ) -> Negatives:
        index, cut, limit = self._known(history, start, stop)
        hard = dst.new_empty(len(dst), 0)
        if self.source or self.recent:
            last = history.latest_destinations(src, start, self.source, self.recent)
            hard = torch.cat(last, dim=1)
        out, log_q = dst.new_empty(len(dst), self.num), torch.empty(len(dst), self.num)
        index.native.draw_lists(key, src, dst, cut, limit, hard, out, log_q)
        mask = log_q > -torch.inf
        return Negatives.of_own(src, dst, out, None if bool(mask.all()) else mask, log_q)

    def _known(
        self, history: PairHistory, start: Tensor, stop: int
    ) -> tuple[PairHistory, Tensor, int]:
        """Return the history of random destinations, the cut of each event, and of fallbacks."""
        if self.pool is not None:
            size = len(self.pool)
            return self.pool, torch.full_like(start, size), size
        limit = self.limit(stop)
        cut = start if self.cut is None else torch.full_like(start, self.cut)
        return history.upto(limit), cut, limit

    def mask(self, begin: int, end: int, num: int) -> Tensor | None:
        """Return which of `num` the events `[begin, end)` have, bool `[B, num]`; None: all."""
        if self.every == 1 or num == 1:
            return None
        mask = torch.zeros(end - begin, num, dtype=torch.bool)
        mask[:, 0] = True
        mask[chosen_events(begin, end, self.every)] = True
        return mask

    def all_known(self, history: PairHistory, begin: int, stop: int) -> Tensor:
        """Return all destinations that count as known for a batch `[begin, stop)`, int64 `[N]`."""
        before = begin if self.cut is None else self.cut
        index = history.upto(self.limit(stop))
        return index.destinations(before if index.num_destinations(before) else stop)

    def limit(self, stop: int) -> int:
        """Return the number of events needed to draw for a batch that ends at `stop`."""
        return stop if self.cut is None else max(stop, self.cut)


def chosen_events(begin: int, end: int, every: int) -> Tensor:
    """Return which events of `[begin, end)` are the chosen ones of each `every`, bool `[N]`."""
    is_chosen = torch.empty(end - begin, dtype=torch.bool)
    choose_positions(begin, every, is_chosen)
    return is_chosen


def _joined(found: list[Negatives]) -> Negatives:
    """Return negatives of several kinds side by side."""
    is_full = all(each.mask is None for each in found)
    masks = [torch.ones_like(x.dst, dtype=torch.bool) if x.mask is None else x.mask for x in found]
    return Negatives(
        torch.cat([each.src for each in found], dim=1),
        torch.cat([each.dst for each in found], dim=1),
        sum(each.num_fallbacks for each in found),
        own_sources=all(each.own_sources for each in found),
        mask=None if is_full else torch.cat(masks, dim=1),
    )


_CAUSE = "check that the data set has the same version, and was read without a limit or sorting"


class FixedSplit(NamedTuple):
    """Split that a file of negatives was written with."""

    val_start: int
    """Log position of the first validation event."""
    test_start: int
    num_events: int
    parts: tuple[str, ...]
    """Parts that have negatives, of "val" and "test"."""

    @classmethod
    def load(cls, name: str) -> FixedSplit:
        """Load the split of NAME.test.negatives.safetensors; raises as `FixedNegatives.load`."""
        path = f"{name}.test.negatives.safetensors"
        with _opened(path) as file:
            about = file.metadata() or {}
        try:
            first, second, num = (int(about[key]) for key in cls._fields[:3])
            return cls(first, second, num, tuple(about["negatives"].split(",")))
        except (KeyError, ValueError):
            raise ValueError(
                f"{path} does not state its split; write it with `tgflow convert`"
            ) from None


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path} is not a file of negatives: {error!s:.100}") from None


class FixedNegatives:
    """Fixed negatives per event: the event's source with given destinations.

    The number may differ between events: rows are padded to the longest, and `Negatives.mask`
    marks the negatives. Events from the log position `first_eid` on have those from `start[i]` to
    `start[i + 1]` in `dst`.
    """

    def __init__(self, first_eid: int, start: Tensor, dst: Tensor) -> None:
        for name, column in (("start", start), ("dst", dst)):
            if column.dtype != torch.int64 or column.dim() != 1 or bool((column < 0).any()):
                kind = f"{column.dtype} {list(column.shape)}"
                raise ValueError(f"{name} must be one column of int64, at least 0, got {kind}")
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
        """Load NAME.val.negatives.safetensors or NAME.test.negatives.safetensors.

        `tgflow convert` writes them. ValueError if the file has another format, or a node that the
        stream does not have, all of which has been read.
        """
        with _opened(path) as file:
            start, dst = file.get_tensor("start"), file.get_tensor("dst")
        if dst.dtype != torch.int64:
            raise ValueError(f"{path}: dst must be int64, got {dst.dtype}")
        found = ids.find(dst, "dst")
        if bool((found < 0).any()):
            unknown = int(dst[int((found < 0).nonzero()[0])])
            raise ValueError(f"{path}: node {unknown} is not in the stream; {_CAUSE}")
        return cls(first_eid, start, found)

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return the negatives of the events before `stop`; ValueError for one without any."""
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
        return Negatives.of_own(src, dst, found, mask if self._is_ragged else None)


@dataclass(frozen=True, slots=True)
class NegativeFunction:
    """Draws negatives by a Python function: the event's source with destinations of your own.

    Args:
        function: Called as `function(history, key, src, dst, start, stop)` for the `B` new and
            replayed events of a batch, with the destinations and pairs of each prefix of the log
            (`PairHistory`), the random key of the batch, the events' ends and the log positions at
            which the batch of each started, int64 `[B]`, and the position at which this one ends.
            Returns int64 `[B, num]`: destinations of events before `stop`, and `NO_NODE` where
            there are fewer. It must be a pure function of its arguments and of the log before
            `stop`, and is called from several threads concurrently.
        num: Negatives per event, at least 1.

    Example:
        >>> def latest(history, key, src, dst, start, stop):
        ...     own, recent = history.latest_destinations(src, start, 1, 2)
        ...     return recent.where(recent != dst[:, None], tg.NO_NODE)
        >>> negatives = tg.plan.NegativeFunction(latest, num=2)
        >>> trainer = tg.ContinualTrainer(tg.TGN(), tg.TemporalGraph(), negatives=negatives)
        >>> trainer.run([many])["negatives"]
        'own:2'
    """

    function: Callable[[PairHistory, int, Tensor, Tensor, Tensor, int], Tensor]
    num: int

    def __post_init__(self) -> None:
        if self.num < 1:
            raise ValueError(f"num must be at least 1 negative per event, got {self.num}")

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return the negatives of the function; `ValueError` if they are not as in `function`."""
        given = src.clone(), dst.clone(), start.clone()  # it must not modify the caller's tensors
        found = self.function(history.upto(stop), key, *given, stop)
        what, own = "function of negatives", dst.unsqueeze(1).expand(-1, self.num)
        check_returned(what, found, [len(src), self.num])
        mask, known = found != NO_NODE, history.destinations(stop)
        late = mask & ~torch.isin(found, known)
        refuse_returned(what, late, found, f"which is no destination before position {stop}")
        refuse_returned(what, mask & (found == own), found, "which is the event's own destination")
        return Negatives.of_own(src, dst, found, None if bool(mask.all()) else mask)


NegativeSource: TypeAlias = NegativeSampler | FixedNegatives | NegativeFunction
"""Negatives of a plan: drawn, given, or by a function."""
