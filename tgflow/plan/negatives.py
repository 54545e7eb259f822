"""Negatives: the events that did not happen, drawn from what a prefix of the log knows."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol, get_args

import torch
from torch import Tensor

from tgflow.choices import NegativeKind
from tgflow.describe import described
from tgflow.graph.log import EventLog
from tgflow.plan._native import PairIndex


class PairHistory:
    """The distinct destinations and (src, dst) pairs of every prefix of a log.

    It reads on in the log when it is asked about more than it has read. Safe to use from any number
    of threads. An answer about the first `n` events never changes.

    Args:
        log: Log to follow; not modified.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._index = PairIndex()
        self._growing = threading.Lock()

    def upto(self, position: int) -> PairIndex:
        """Return the index, having read at least the first `position` events.

        Raises:
            ValueError: If the log has fewer.
        """
        if len(self._index) < position:
            with self._growing:
                self._grow(position)
        return self._index

    def _grow(self, position: int) -> None:
        if position > len(self._log):
            raise ValueError(f"position {position} is past the log's end, {len(self._log)} events")
        start = len(self._index)
        if start < position:
            events = self._log.read(start, position)
            self._index.append(events.src, events.dst)


@dataclass(frozen=True, slots=True, eq=False)
class Negatives:
    """`m` negatives for each of `B` events."""

    src: Tensor
    """int64 `[B, m]`."""
    dst: Tensor
    """int64 `[B, m]`."""
    num_fallbacks: int
    """How many are not of the kind asked for, there being no eligible candidate."""
    own_sources: bool
    """Whether all have their events' sources."""
    mask: Tensor | None = None
    """bool `[B, m]`: which are negatives, where some rows have fewer than `m`; None: all. The rest
    is the event itself."""

    def part(self, rows: slice, num: int) -> Negatives:
        """Return the first `num` negatives of some events."""
        mask = None if self.mask is None else self.mask[rows, :num]
        src, dst = self.src[rows, :num], self.dst[rows, :num]
        return Negatives(src, dst, 0, own_sources=self.own_sources, mask=mask)


class NegativeSource(Protocol):
    """Where the negatives of a plan come from."""

    @property
    def num(self) -> int:
        """Negatives per event, `m`."""
        ...

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return `num` negatives for each event, a pure function; see `NegativeSampler.draw`."""
        ...


@described
@dataclass(frozen=True, slots=True)
class NegativeSampler:
    """How negatives are drawn; the draws are a pure function of a key and of a prefix of the log.

    * `random`: the event's source with a destination known before the cut, uniformly over the
      distinct ones, never the event's own destination unless they may `collide`.
    * `historical`: a (src, dst) pair that occurred before the cut, uniformly over the distinct
      pairs, none of them an event of the batch. The source is replaced too, as in DyGLib.
    * `inductive`: the same over the pairs first seen at or after position `since`.

    Where no pair is eligible the negative is a random one; where no destination is known before the
    cut but the event's own, it is drawn from the destinations known at the end of the batch, then
    from the sources known there. Those are counted as fallbacks.

    Args:
        kind: Which of the three.
        num: Negatives per event, at least 1.
        cut: The log position before which candidates must have been seen. None is the start of the
            batch that an event belongs to (continual learning); the end of the log is the
            published offline protocol, which takes every destination as known.
        since: Position from which on inductive pairs were first seen: where training ended, or what
            was evaluated before. Needed for `inductive`, unused otherwise.
        collide: `random`: whether a negative may be the event itself, as with DyGLib's.
        replace: `historical` and `inductive`: whether the n-th negatives of two events of a batch
            may be the same pair. Without, they are random ones once the pairs are used up.

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

    def __post_init__(self) -> None:
        if self.kind not in get_args(NegativeKind):
            raise ValueError(
                f"negatives must be one of {', '.join(get_args(NegativeKind))}, got {self.kind!r}"
            )
        if self.num < 1:
            raise ValueError(f"num must be at least 1 negative per event, got {self.num}")
        if self.cut is not None and self.cut < 0:
            raise ValueError(f"cut must be a log position of at least 0, got {self.cut}")
        if self.kind == "inductive" and self.since is None:
            raise ValueError(
                "inductive negatives need since, the position from which on pairs count as new"
            )
        if self.collide and self.kind != "random":
            raise ValueError(f"only random negatives may collide, got collide with {self.kind!r}")
        if not self.replace and self.kind == "random":
            raise ValueError("random negatives are drawn with replacement, got replace=False")

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return `num` negatives for each event (src, dst).

        Args:
            history: Destinations and pairs of the log; reads on in the log if need be.
            key: Of the batch; see `tgflow.keys`.
            src: Sources, int64 `[B]`.
            dst: Destinations, int64 `[B]`.
            start: Log position at which each event's batch started, int64 `[B]`.
            stop: Log position at which the batch ends.

        Raises:
            ValueError: If an event has no negative at all: its destination is the only node known
                at the end of the batch; or if `cut` is past the log's end.
        """
        limit = self.limit(stop)
        index = history.upto(limit)
        cut = start if self.cut is None else torch.full_like(start, self.cut)
        if self.kind == "random":
            out_dst, fallbacks = index.draw_destinations(
                key, src, dst, cut, self.num, limit, collide=self.collide
            )
            own = src.unsqueeze(1).expand(-1, self.num)
            return Negatives(own, out_dst, fallbacks, own_sources=True)
        first = self.pairs_from
        drawn = index.draw_pairs(key, src, dst, cut, self.num, limit, first, replace=self.replace)
        return Negatives(*drawn, own_sources=False)

    def limit(self, stop: int) -> int:
        """Return how many events must be known to draw for a batch that ends at `stop`."""
        return stop if self.cut is None else max(stop, self.cut)

    @property
    def pairs_from(self) -> int:
        """The log position from which on the pairs that are drawn were first seen."""
        return self.since or 0 if self.kind == "inductive" else 0
