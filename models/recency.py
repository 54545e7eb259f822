"""Recency and popularity: On the Power of Heuristics in Temporal Graphs, 2025, arXiv:2502.04910.

Differs from the paper:
    * All events before a query count, also those of its own batch. With `visibility="batch"` only
      those before the batch count.
    * Scores are also comparable between queries, as AP needs: they use ages, not times.
    * Events between two nodes count in either direction, unless `direction="forward"`.
    * By default, the rule with the highest average precision, summed over the batches so far, is
      used; before a test, over validation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.counts import Count, Counts
from tgflow.describe import described
from tgflow.model import make_config
from tgflow.models.heuristic import Heuristic, PairDirection, latest_age, pair_counts
from tgflow.setting import check_ranges

Rule = Literal["LR>GR", "LR>GP", "LR>LP", "LP>GR", "LP>GP", "LR", "LP", "GR", "GP"]
RULES: tuple[Rule, ...] = ("LR>GR", "LR>GP", "LR>LP", "GR", "GP")
"""Rules tried if none is given."""
_Key: TypeAlias = tuple[Tensor, Tensor]
_UNIT = 2.0**-64  # brings ages in ticks below 1, without rounding


@described
@dataclass(frozen=True, kw_only=True)
class RecencyConfig:
    """Settings of the rules of recency and popularity."""

    rule: Rule | None = None
    """Keys of the order, the second for ties: LR, how recently the pair was seen; LP, how often; GR
    and GP, the same of its destination. Unset: the best one."""
    direction: PairDirection = "both"
    """both: events between the two in either direction; forward: in that of the pair."""

    def __post_init__(self) -> None:
        check_ranges(self)


class Recency(Heuristic):
    """The exact order of pairs by a rule, as scores that order all pairs consistently.

    Pairs that were seen score from -1 to 0, others less, and those without any history the least.

    Args:
        config: Settings; None: the defaults.
        settings: Fields of `config` to set, as in `TGN(memory_dim=32)`.

    Example:
        >>> tg.Recency(rule="LR>GR").candidates
        ('LR>GR',)
    """

    config_type = RecencyConfig

    def __init__(self, config: RecencyConfig | None = None, **settings: Any) -> None:
        c = make_config(RecencyConfig, config, settings)
        self.direction = c.direction
        rules = RULES if c.rule is None else [c.rule]
        super().__init__(rules, [Count("dst"), *pair_counts(c.direction)])

    def rate(
        self, batch: Batch, counts: Sequence[Counts], candidates: Sequence[int]
    ) -> list[Tensor]:
        key = cache(lambda name: self._key(batch, counts, name))
        return [self._scores(self.candidates[i], key) for i in candidates]

    def _scores(self, rule: str, key: Callable[[str], _Key]) -> Tensor:
        first, _, second = rule.partition(">")
        value, seen = key(first)
        if not second:
            return torch.where(seen, _leading(first, value, 0.0), self.never)
        other, other_seen = key(second)
        share = torch.where(other_seen, _share(second, other), 0.0)
        following = torch.where(other_seen, _following(second, other), self.never)
        return torch.where(seen, _leading(first, value, share), following)

    def _key(self, batch: Batch, counts: Sequence[Counts], key: str) -> _Key:
        """Return the ages in ticks or the counts of a key, float64, and a mask of existing ones."""
        if key[0] == "G":
            value, seen = (counts[0].age if key[1] == "R" else counts[0].num), counts[0].num > 0
        elif key == "LR":
            value = latest_age(counts[1:])
            seen = value >= 0
        else:
            value = _num_met(batch, counts[1:])
            seen = value > 0
        return value.double(), seen


def _num_met(batch: Batch, counts: Sequence[Counts]) -> Tensor:
    """Return the number of events between the two, those of a node with itself once."""
    pair, *reverse = [each.num for each in counts]
    if not reverse:
        return pair
    rows, columns = pair.shape
    ends = (batch.src, batch.negative_src), (batch.dst, batch.negative_dst)
    src, dst = (
        torch.cat([own[:rows].unsqueeze(1), others[:rows, : columns - 1]], dim=1)
        for own, others in ends
    )
    return pair + reverse[0].where(src != dst, 0)


def _leading(key: str, value: Tensor, share: Tensor | float) -> Tensor:
    """Return scores from -1 to 0 that order by a key, and ties by a share below 1."""
    if key[1] == "R":
        return (share - 1 - value).mul_(_UNIT)
    return (1 + value).add_(share).reciprocal_().neg_()


def _following(key: str, value: Tensor) -> Tensor:
    """Return scores from -2^64 to -1 that order by a key."""
    return -1 - value if key[1] == "R" else -1 - 2**20 / (1 + value)


def _share(key: str, value: Tensor) -> Tensor:
    """Return numbers of (0, 1) that order by a key."""
    share = (1 + value).log2_().add_(1).reciprocal_()
    return share if key[1] == "R" else 1 - share
