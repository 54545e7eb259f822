"""Counts that make a history keep every list, and numbers of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from tgflow.base.choices import CountOf
from tgflow.graph.counts import Count, Number, number

KINDS: tuple[CountOf, ...] = get_args(CountOf)
OF_SOURCE: tuple[CountOf, ...] = ("pair", "src", "src_new", "src_switch", "own_transition")
EVERY_LIST = [
    *(Count(of) for of in KINDS),
    *(Count(of, half_life=3.0) for of in KINDS),
    *(Count(of, half_life=2.0, clock="events") for of in KINDS),
    *(Count(of, half_life=2.0, clock="source") for of in OF_SOURCE),
    *(Count(of, depth=3) for of in ("transition", "transition_row", "window", "window_row")),
    *(Count("covisit", depth=depth) for depth in (2, 3)),
    Count("pair", half_life=0.5),
]


def numbers_of(counts: Sequence[Count]) -> list[Number]:
    """Return num, age and decayed of each count, 0 without decay."""
    decayed = (number(0) if each.half_life is None else each.decayed for each in counts)
    rows = zip(counts, decayed, strict=True)
    return [part for each, total in rows for part in (each.num, each.age, total)]
