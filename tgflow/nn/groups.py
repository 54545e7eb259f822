"""Groups of numbers of a pair's past that models read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import get_args

from tgflow.base.choices import CountClock, CountOf, PairGroup
from tgflow.graph.counts import Count, Number, latest, number, where

HOUR, DAY = 3600.0, 86_400.0
WEEK, MONTH = 7 * DAY, 30 * DAY
_LOG_SCALE = 1 / 16
"""Scales the logarithm of an age in seconds, of up to 30 years, to the order of 1."""
_NEVER = 2.0
"""Replaces the scaled logarithm of an age where there was no event: older than all."""


PAIR_GROUPS: tuple[PairGroup, ...] = tuple(g for g in get_args(PairGroup) if g != "relations")
"""All groups but relations, which pair features and `counts` read by default."""


@cache
def numbers_of(groups: tuple[PairGroup, ...]) -> tuple[Number, ...]:
    """Return the numbers of groups, one group after the other."""
    return tuple(each for group in groups for each in _GROUPS[group]())


def _recency() -> Iterator[Number]:
    """Yield whether, how often and how lately the pair, in each direction, and v had events.

    Six numbers each of events from u to v, from v to u, in either direction, and to v from
    anywhere: whether there are any, log(1 + number), log(1 + age of the latest) / 16, and
    exp(-age / 1 h), exp(-age / 1 d), exp(-age / 1 w); 0 for never.
    """
    pair, reverse, dst = Count("pair"), Count("reverse"), Count("dst")
    for num, age in (
        (pair.num, pair.age),
        (reverse.num, reverse.age),
        (pair.num + reverse.num, latest(pair.age, reverse.age)),
        (dst.num, dst.age),
    ):
        seen, seconds = num >= 1, age.maximum(0)
        yield seen
        yield num.log1p()
        yield seconds.log1p() * _LOG_SCALE
        for scale in (HOUR, DAY, WEEK):
            yield where(seen, (-seconds / scale).exp(), 0)


def _order() -> Iterator[Number]:
    """Yield the pair's place among the last events of u, and among those of all."""
    pair, dst, own = Count("pair"), Count("dst"), Count("own_transition")
    for rank in (pair.rank, dst.rank):
        yield (1 + rank).log2() / 5
    yield where(pair.since >= 0, pair.since.maximum(0).log1p() / 4, _NEVER)
    yield number(0) >= pair.rank
    for half_life in (1.5, 4.0, 16.0):
        yield _decayed("pair", half_life, "source")
    yield _log(own.num)
    yield _log_age(own.age)


def _frequency() -> Iterator[Number]:
    """Yield how often the pair had events, at several scales of time, and its share of u's."""
    pair, src = Count("pair"), Count("src")
    for half_life in (60, 600, HOUR, 6 * HOUR, DAY, 3 * DAY, WEEK, MONTH):
        yield _log(_decayed("pair", half_life))
    yield _log(pair.num)
    yield pair.num / (1 + src.num)


def _source() -> Iterator[Number]:
    """Yield how active u is, how many destinations it has, and how often it changes them."""
    src, new, switch = Count("src"), Count("src_new"), Count("src_switch")
    latest_ones = _decayed("src", 16, "source")
    yield _log_age(src.age)
    yield _log(src.num)
    yield _log(new.num)
    yield _decayed("src_switch", 16, "source") / (0.1 + latest_ones)
    yield _decayed("src_new", 16, "source") / (0.1 + latest_ones)
    yield where(switch.since >= 0, _log(switch.since), _log(src.num))
    yield _log(_decayed("src", HOUR))
    yield _log(_decayed("src", DAY))
    yield _log_age(new.age)


def _destination() -> Iterator[Number]:
    """Yield how popular v is, at several scales of time."""
    for half_life in (600, HOUR, 6 * HOUR, DAY, WEEK, MONTH):
        yield _log(_decayed("dst", half_life))
    yield _log(Count("dst").num)


def _arrivals() -> Iterator[Number]:
    """Yield how many new partners and new sources v got, and whether u was its last source."""
    pair, dst, new = Count("pair"), Count("dst"), Count("dst_new")
    for half_life in (HOUR, DAY, WEEK, MONTH):
        yield _log(_decayed("dst_new", half_life))
    for of in ("dst_first", "dst_switch"):
        for half_life in (DAY, WEEK):
            yield _log(_decayed(of, half_life))
    yield where(pair.num >= 1, dst.age >= pair.age, 0)
    yield _log(new.num)
    yield _log_age(new.age)


def _covisits() -> Iterator[Number]:
    """Yield how often v followed u's last destinations, and the sources it shares with them."""
    after, row = Count("transition"), Count("transition_row")
    soon, soon_lately = number(0), number(0)
    for depth in range(1, 6):
        soon += Count("window", depth).num
        soon_lately += _decayed("window", WEEK, depth=depth)
    yield _log(soon)
    yield _log(soon_lately)
    yield _log(_decayed("transition", DAY))
    yield _log(_decayed("transition", MONTH))
    yield after.num / (1 + row.num)
    shared, most = number(0), number(0)
    for depth in range(1, 9):
        each = Count("covisit", depth).num
        shared, most = shared + each, most.maximum(each)
    yield _log(shared)
    yield _log(most)
    yield shared * (-(1 + Count("dst_new").num).log() / 2).exp() / 4  # as in a cosine


def _replies() -> Iterator[Number]:
    """Yield how active v is as a source and u as a destination, and events from v to u."""
    reverse, active, reached = Count("reverse"), Count("dst_as_src"), Count("src_as_dst")
    yield _log_age(active.age)
    yield _log_age(reached.age)
    for half_life in (HOUR, DAY, WEEK):
        yield _log(_decayed("dst_as_src", half_life))
    yield _log(active.num)
    yield _log(reached.num)
    for half_life in (HOUR, DAY, WEEK):
        yield _log(_decayed("reverse", half_life))
    yield where(reverse.num >= 1, reached.age >= reverse.age, 0)
    yield where(reverse.num >= 1, active.age >= reverse.age, 0)
    yield where(reverse.num >= 1, Count("pair").age >= reverse.age, 0)


def _relations() -> Iterator[Number]:
    """Yield the shares of v among events of the relation, and how lately it had them.

    Of the relation, and of it and u, at several scales of time: the shares are smoothed, the
    former by those of all events, the latter by the former.
    """
    own, to_dst = Count("pair_relation"), Count("dst_relation")
    for half_life in (2 * DAY, WEEK, MONTH):
        share = (_decayed("dst", half_life) + 1) / (_decayed("all", half_life) + 1000)
        among = _decayed("dst_relation", half_life) + share
        among /= _decayed("relation", half_life) + 1
        yield among.log()
        met = _decayed("pair_relation", half_life) + among
        yield (met / (_decayed("src_relation", half_life) + 1)).log()
    for each in (own, to_dst):
        yield _log(each.num)
        yield _log_age(each.age)
        for scale in (2 * DAY, WEEK, MONTH):
            yield where(each.age >= 0, (-each.age / scale).exp(), 0)


def _decayed(
    of: CountOf, half_life: float, clock: CountClock = "seconds", depth: int = 1
) -> Number:
    return Count(of, depth, half_life, clock).decayed


def _log(num: Number) -> Number:
    return num.log1p() / 4


def _log_age(age: Number) -> Number:
    return where(age >= 0, age.maximum(0).log1p() * _LOG_SCALE, _NEVER)


_GROUPS = {
    "recency": _recency,
    "order": _order,
    "frequency": _frequency,
    "source": _source,
    "destination": _destination,
    "arrivals": _arrivals,
    "covisits": _covisits,
    "replies": _replies,
    "relations": _relations,
}


def recency_weights(groups: Sequence[PairGroup]) -> list[float]:
    """Return weights of the numbers of groups that score pairs by recency, as logits.

    6 (1 - p) + 3 (0.7 - d), where p and d are log(1 + age) / 16 of the latest event of the pair
    in either direction and of that of the destination; a term is 0 if there is none, so that
    new nodes are not penalized. The terms are 6 and 2 at an age of 1 s, and 0 at 103 days and
    20 hours. All 0 without the group `recency`.
    """
    pair, dst = [6.0, 0.0, -6.0, 0.0, 0.0, 0.0], [2.1, 0.0, -3.0, 0.0, 0.0, 0.0]
    own = [*(0.0,) * 12, *pair, *dst]
    return [
        weight
        for group in groups
        for weight in (own if group == "recency" else [0.0] * len(numbers_of((group,))))
    ]
