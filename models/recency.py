"""Recency and popularity: On the Power of Heuristics in Temporal Graphs, 2025, arXiv:2502.04910.

Differs from the paper:
    * All events before a query count, also those of its own batch. With `visibility="batch"` only
      those before the batch count.
    * Scores are also comparable between queries, as AP needs: they use ages, not times.
    * Where ages lead, those less than 2^-10 s apart are ordered by both keys.
    * Events between two nodes count in either direction, unless `direction="forward"`.
    * By default, the best rule so far is used (see `Heuristic`); before a test, over validation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tgflow.base.describe import described
from tgflow.base.setting import Checked
from tgflow.graph.counts import LOOP, Count, Number, where
from tgflow.models.heuristic import Heuristic, PairDirection, pair_age
from tgflow.nn.model import make_config

Rule = Literal["LR>GR", "LR>GP", "LR>LP", "LP>GR", "LP>GP", "LR", "LP", "GR", "GP"]
RULES: tuple[Rule, ...] = ("LR>GR", "LR>GP", "LR>LP", "GR", "GP")
"""Rules tried if none is given."""
_NEVER = -(2.0**65)
"""The score of a pair without history, where others have scores below 0."""
_UNIT = 2.0**-64  # brings ages below 1, without rounding
_TIE = 2.0**-10  # seconds: below a millisecond, so that the second key decides only between ties


@described
@dataclass(frozen=True, kw_only=True)
class RecencyConfig(Checked):
    """Settings of the rules of recency and popularity."""

    rule: Rule | None = None
    """Keys of the order, the second for ties: LR, how recently the pair was seen; LP, how often; GR
    and GP, the same of its destination. Unset: the best one."""
    direction: PairDirection = "both"
    """both: events between the two in either direction; forward: in that of the pair."""


class Recency(Heuristic):
    """The exact order of pairs by a rule, as scores that order all pairs consistently.

    Pairs that were seen score from -1 to 0, others less, and those without any history the least.

    Example:
        >>> tg.Recency(rule="LR>GR").candidates
        ('LR>GR',)
    """

    config_type = RecencyConfig

    def __init__(self, config: RecencyConfig | None = None, **settings: Any) -> None:
        c = make_config(RecencyConfig, config, settings)
        rules = RULES if c.rule is None else [c.rule]
        super().__init__(rules, [_score(rule, c.direction) for rule in rules])


def _score(rule: str, direction: PairDirection) -> Number:
    first, _, second = rule.partition(">")
    value, seen = _key(first, direction)
    if not second:
        return where(seen, _leading(first, value, 0.0), _NEVER)
    other, other_seen = _key(second, direction)
    share = where(other_seen, _share(second, other), 0.0)
    following = where(other_seen, _following(second, other), _NEVER)
    return where(seen, _leading(first, value, share), following)


def _key(key: str, direction: PairDirection) -> tuple[Number, Number]:
    """Return the age in seconds or the count of a key, and whether there is one."""
    if key == "LR":
        age = pair_age(direction)
        return age, age >= 0
    if key == "LP":
        num = Count("pair").num
        if direction == "both":  # events of a node with itself once
            num += where(LOOP, 0.0, Count("reverse").num)
        return num, num >= 1
    dst = Count("dst")
    return dst.age if key == "GR" else dst.num, dst.num >= 1


def _leading(key: str, value: Number, share: Number | float) -> Number:
    """Return scores from -1 to 0 that order by a key, and ties by a share below 1."""
    if key[1] == "R":
        return (share * _TIE - 1 - value) * _UNIT
    return -(1 / (1 + value + share))


def _following(key: str, value: Number) -> Number:
    """Return scores from -2^64 to -1 that order by a key."""
    return -1 - value if key[1] == "R" else -1 - 2**20 / (1 + value)


def _share(key: str, value: Number) -> Number:
    """Return numbers of (0, 1) that order by a key."""
    share = 1 / (1 + (1 + value).log2())
    return share if key[1] == "R" else 1 - share
