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

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from tgflow.batch import Batch
from tgflow.counts import MAX_DEPTH, Count, Counts
from tgflow.describe import described
from tgflow.model import Scores, TemporalModel, make_config
from tgflow.models.heuristic import latest_age
from tgflow.nn.choice import one_thread
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
        self.counts = tuple(_counts(c))
        dim = 3 + c.depth + c.window + c.recency + 2 * c.scales + 2 * c.ages
        self.hidden = Linear(dim, c.hidden) if c.hidden else None
        self.out = Linear(c.hidden or dim, 1)
        if not c.hidden:
            nn.init.constant_(self.out.weight, 1 / dim)
            nn.init.zeros_(self.out.bias)

    def forward(self, batch: Batch) -> Scores:
        x = self.features(batch.counts, batch.seconds_per_tick)
        if self.hidden is not None:
            x = self.hidden(x).relu()
        logits: Tensor = self.out(x).squeeze(-1)
        return Scores(logits[:, 0], logits[:, 1:])

    def features(self, counts: tuple[Counts, ...], seconds_per_tick: float) -> Tensor:
        """Return the inputs of the linear score, float32 `[B, 1 + m, dim]`.

        Args:
            counts: Results of `self.counts`.
            seconds_per_tick: Length of a tick.
        """
        with one_thread():
            columns = self._columns(iter(counts), seconds_per_tick)
            return torch.stack([column.float() for column in columns], dim=-1)

    def _columns(self, counts: Iterator[Counts], seconds_per_tick: float) -> Iterator[Tensor]:
        """Yield the features one by one, float64 `[B, 1 + m]`."""
        c, num = self.config, self.config.num_destinations
        every, dst, src, pair = (next(counts) for _ in range(4))
        share = (_sum(dst) + 1) / (_sum(every) + num)
        yield share.log()
        base, known, met, age = share, _sum(src), _sum(pair), pair.age
        if c.base:
            new, all_new = next(counts).num, next(counts).num
            base = (new + 1) / (all_new + num).double()
        if c.both:
            reverse, received = next(counts), next(counts)
            met, known = met + _sum(reverse), known + _sum(received)
            age = latest_age([pair, reverse])
        yield ((met + base) / (known + 1)).log()
        for k in range(1, c.depth + 1):
            after, row = _sum(next(counts)), _sum(next(counts))
            yield ((after + base) / (row + 1)).log().where(src.num >= k, 0.0)
        if c.window:
            windows = [(_sum(next(counts)), _sum(next(counts))) for _ in range(c.depth)]
            after, row = (torch.stack(each).sum(dim=0) for each in zip(*windows, strict=True))
            yield ((after + base) / (row + 1)).log()
        seconds, of_dst = age * seconds_per_tick, dst.age * seconds_per_tick
        for scale in (c.scale, c.scale / 10, c.scale * 10)[: 3 if c.scales else 1]:
            yield torch.exp(-seconds / scale).where(age >= 0, 0.0)
        if c.recency:
            yield torch.exp(-of_dst / c.scale).where(dst.age >= 0, 0.0)
        if c.ages:
            yield (seconds.log1p() / 16).where(age >= 0, _NEVER)
            yield (of_dst.log1p() / 16).where(dst.age >= 0, _NEVER)


def _counts(c: SmoothedCountsConfig) -> Iterator[Count]:
    """Yield the inputs of `_columns`, in its order."""
    for of in ("all", "dst", "src", "pair"):
        yield Count(of, half_life=c.half_life)
    if c.base:
        yield Count("continuation")
        yield Count("continuation_all")
    if c.both:
        yield Count("reverse", half_life=c.half_life)
        yield Count("src_as_dst", half_life=c.half_life)
    for k in range(1, c.depth + 1):
        yield Count("transition", depth=k, half_life=c.half_life)
        yield Count("transition_row", depth=k, half_life=c.half_life)
    for k in range(1, c.depth + 1 if c.window else 1):
        yield Count("window", depth=k, half_life=c.half_life)
        yield Count("window_row", depth=k, half_life=c.half_life)


def _sum(counts: Counts) -> Tensor:
    assert counts.decayed is not None
    return counts.decayed
