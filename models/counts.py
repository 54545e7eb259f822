"""Counts: Do Temporal Link Predictors Need Learned Memory?, Qarkaxhija and Scholtes, 2026.

The paper's score is linear in logarithms of smoothed shares of past events and in the time since
the pair was seen, with 9 parameters: `SmoothedCounts(groups=["shares"], hidden=(), gain=1)`.

Differs from the paper:
    * By default the score is a small network over more of the exact history of each pair, see
      `tgflow.nn.groups`, and learns to rank each event among hard and random candidates.
    * The size of the vocabulary is a setting, as a stream has no last destination; it moves the
      shares of all candidates of a query alike.
    * The scale of time is a setting in seconds; the paper's is a part of the data's duration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from tgflow.base.choices import CountOf, PairGroup
from tgflow.base.describe import described
from tgflow.base.setting import check_ranges
from tgflow.graph.batch import Batch
from tgflow.graph.counts import MAX_DEPTH, Count, Number, where
from tgflow.nn.groups import PAIR_GROUPS, numbers_of, recency_weights
from tgflow.nn.linear import Linear
from tgflow.nn.model import Scores, TemporalModel, make_config


@described
@dataclass(frozen=True, kw_only=True)
class SmoothedCountsConfig:
    """Settings of the count model."""

    groups: tuple[PairGroup | Literal["shares"], ...] = PAIR_GROUPS
    """Groups of numbers to read, see `tgflow.nn.groups`; shares: those of the paper."""
    hidden: tuple[Annotated[int, Ge(1)], ...] = (64, 32)
    """Widths of hidden layers; none: a linear score."""
    gain: Annotated[float, Gt(0)] = 60.0
    """Factor of the linear part, which scales the steps of its weights: high to learn a stream
    once, 1 for several epochs."""
    depth: Annotated[int, Ge(0), Le(MAX_DEPTH)] = 5
    """Shares: last destinations of the source whose followers are counted."""
    half_life: Annotated[float, Gt(0)] = 2_592_000.0
    """Shares: half-life of an event's weight, in seconds."""
    scale: Annotated[float, Gt(0)] = 86_400.0
    """Shares: seconds in which the recency of a pair decays to 1/e."""
    num_destinations: Annotated[int, Ge(1)] = 1000
    """Shares: size of the vocabulary that they are smoothed over."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.groups:
            raise ValueError('groups must name at least one group, such as ("recency",)')


class SmoothedCounts(TemporalModel):
    """A linear score, and a network, of numbers of the exact history of each pair.

    It starts by ranking pairs by recency, if it reads the group of that name.

    Example:
        >>> tg.SmoothedCounts(groups=["shares"], depth=2).config.depth
        2
    """

    strategy = "recent"
    fanouts = ()
    reads_nodes = False
    loss = "softmax+bce"
    negatives = "random:40,source:24,recent:32"
    config_type = SmoothedCountsConfig
    counts_dtype = torch.float32

    def __init__(self, config: SmoothedCountsConfig | None = None, **settings: Any) -> None:
        super().__init__()
        self.config = c = make_config(SmoothedCountsConfig, config, settings)
        numbers = [_shares(c) if each == "shares" else numbers_of((each,)) for each in c.groups]
        self.counts = tuple(each for group in numbers for each in group)
        self.out = Linear(len(self.counts), 1)
        num = 3 + c.depth  # inputs of the paper's score
        shares = [1 / num] * num
        parts = [shares if g == "shares" else recency_weights((g,)) for g in c.groups]
        first = [weight for part in parts for weight in part]
        with torch.no_grad():
            self.out.weight.copy_(torch.tensor(first) / c.gain)
            nn.init.zeros_(self.out.bias)
        widths = len(self.counts), *c.hidden
        layers = (Linear(*pair) for pair in pairwise(widths))
        self.hidden = nn.ModuleList(layers)
        self.last = Linear(widths[-1], 1, bias=False) if c.hidden else None
        if self.last is not None:
            nn.init.zeros_(self.last.weight)

    def forward(self, batch: Batch) -> Scores:
        assert batch.counts is not None
        x = batch.counts.float()
        logits: Tensor = self.config.gain * self.out(x)
        for layer in self.hidden:
            x = layer(x).relu()
        if self.last is not None:
            logits = logits + self.last(x)
        logits = logits.squeeze(-1)
        return Scores(logits[:, 0], logits[:, 1:])


def _shares(c: SmoothedCountsConfig) -> Iterator[Number]:
    def decayed(of: CountOf, depth: int = 1) -> Number:
        return Count(of, depth, c.half_life).decayed

    share = (decayed("dst") + 1) / (decayed("all") + c.num_destinations)
    yield share.log()
    yield ((decayed("pair") + share) / (decayed("src") + 1)).log()
    for k in range(1, c.depth + 1):
        after, row = decayed("transition", k), decayed("transition_row", k)
        yield where(Count("src").num >= k, ((after + share) / (row + 1)).log(), 0.0)
    age = Count("pair").age
    yield where(age >= 0, (-age / c.scale).exp(), 0.0)
