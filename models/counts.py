"""Smoothed counts: Do Temporal Link Predictors Need Learned Memory?, Qarkaxhija and Scholtes, 2026.

Each score is linear in logarithms of smoothed shares of past events, and in the time since the pair
was seen: 9 parameters, or 13 with all extras.

Differs from the paper:
    * The size of the vocabulary is a setting, as a stream has no last destination; it moves the
      shares of all candidates of a query alike.
    * The scales of time are settings in seconds; the paper's are parts of the data's duration.
    * `both` pools the events of a pair in either direction; `ages` adds the logarithms of the ages
      of the pair's and of the destination's latest event; `hidden` puts a layer before the score.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from tgflow.batch import Batch
from tgflow.choices import CountOf
from tgflow.counts import MAX_DEPTH, TICK, Count, Number, latest, number, where
from tgflow.describe import described
from tgflow.model import Scores, TemporalModel, make_config
from tgflow.nn.linear import Linear
from tgflow.setting import check_ranges

_NEVER = 2.0
"""Replaces log(1 + age) / 16 where there was no event: older than all."""


@described
@dataclass(frozen=True, kw_only=True)
class SmoothedCountsConfig:
    """Settings of the count model; the defaults are its reference set of 9 parameters."""

    depth: Annotated[int, Ge(0), Le(MAX_DEPTH)] = 5
    """Last destinations of the source whose followers are counted."""
    half_life: Annotated[float, Gt(0)] = 2_592_000.0
    """Half-life of an event's weight, in seconds."""
    scale: Annotated[float, Gt(0)] = 86_400.0
    """Seconds in which the recency of a pair decays to 1/e."""
    num_destinations: Annotated[int, Ge(1)] = 1000
    """Size of the vocabulary that shares are smoothed over."""
    base: bool = False
    """Whether rare shares fall back on continuations instead of frequencies: the number of distinct
    destinations that the candidate followed."""
    window: bool = False
    """Whether to read which nodes followed the last destinations soon after, in any order."""
    recency: bool = False
    """Whether to read the time since the destination was seen."""
    scales: bool = False
    """Whether to read the pair's recency at a tenth and at ten times the scale."""
    both: bool = False
    """Whether events of a pair count in either direction."""
    ages: bool = False
    """Whether to read the logarithms of both ages."""
    hidden: Annotated[int, Ge(0)] = 0
    """Width of a hidden layer; 0: none."""

    def __post_init__(self) -> None:
        check_ranges(self)


class SmoothedCounts(TemporalModel):
    """w . [log shares | recencies] + b on exact counts of the past.

    Args:
        config: Settings; None: the defaults.
        settings: Fields of `config` to set, as in `TGN(memory_dim=32)`.

    Example:
        >>> tg.SmoothedCounts(depth=2).config.depth
        2
    """

    strategy = "recent"
    fanouts = ()
    reads_nodes = False
    loss = "softmax"
    config_type = SmoothedCountsConfig

    def __init__(self, config: SmoothedCountsConfig | None = None, **settings: Any) -> None:
        super().__init__()
        self.config = c = make_config(SmoothedCountsConfig, config, settings)
        self.counts = tuple(_features(c))
        dim = len(self.counts)
        self.hidden = Linear(dim, c.hidden) if c.hidden else None
        self.out = Linear(c.hidden or dim, 1)
        if not c.hidden:
            nn.init.constant_(self.out.weight, 1 / dim)
            nn.init.zeros_(self.out.bias)

    def forward(self, batch: Batch) -> Scores:
        assert batch.counts is not None
        x = batch.counts.float()
        if self.hidden is not None:
            x = self.hidden(x).relu()
        logits: Tensor = self.out(x).squeeze(-1)
        return Scores(logits[:, 0], logits[:, 1:])


def _features(c: SmoothedCountsConfig) -> Iterator[Number]:
    """Yield the inputs of the linear score."""

    def count(of: CountOf, depth: int = 1) -> Count:
        return Count(of, depth, c.half_life)

    num, pair, dst = c.num_destinations, count("pair"), count("dst")
    share = (dst.decayed + 1) / (count("all").decayed + num)
    yield share.log()
    base, known, met, age = share, count("src").decayed, pair.decayed, pair.age
    if c.base:
        base = (Count("continuation").num + 1) / (Count("continuation_all").num + num)
    if c.both:
        reverse = count("reverse")
        met, known = met + reverse.decayed, known + count("src_as_dst").decayed
        age = latest(age, reverse.age)
    yield ((met + base) / (known + 1)).log()
    depths = range(1, c.depth + 1)
    for k in depths:
        after, row = count("transition", k).decayed, count("transition_row", k).decayed
        yield where(count("src").num >= k, ((after + base) / (row + 1)).log(), 0.0)
    if c.window:
        after, row = number(0.0), number(0.0)
        for k in depths:
            after, row = after + count("window", k).decayed, row + count("window_row", k).decayed
        yield ((after + base) / (row + 1)).log()
    seconds, of_dst = age * TICK, dst.age * TICK
    for scale in (c.scale, c.scale / 10, c.scale * 10)[: 3 if c.scales else 1]:
        yield where(age >= 0, (-seconds / scale).exp(), 0.0)
    if c.recency:
        yield where(dst.age >= 0, (-of_dst / c.scale).exp(), 0.0)
    if c.ages:
        yield where(age >= 0, seconds.log1p() / 16, _NEVER)
        yield where(dst.age >= 0, of_dst.log1p() / 16, _NEVER)
