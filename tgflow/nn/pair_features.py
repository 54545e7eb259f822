"""Features of a pair: its exact history, for any decoder to read beside two embeddings."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from tgflow.batch import Batch
from tgflow.counts import Count

_SECONDS = (3600.0, 86_400.0, 604_800.0)
"""An hour, a day and a week: the scales at which the age of a pair is told apart."""
_LOG_SCALE = 1 / 16
"""Brings the logarithm of an age in seconds, of up to 30 years, to the order of 1."""


class PairFeatures(nn.Module):
    """What the log knows of each pair (u, v) that a batch scores: 24 columns, zeros for never.

    Six each of events from u to v, of those from v to u, of those in either direction, and of those
    to v from anywhere: whether there are any, log(1 + number), log(1 + age of the latest) / 16, and
    exp(-age / 1 h), exp(-age / 1 d), exp(-age / 1 w); ages in seconds. An event of a node with
    itself has both directions.

    It has no parameters. A model that reads it lists `PairFeatures.counts` first of its `counts`.

    Example:
        `LinkDecoder(dim, pair_features=True)`
    """

    counts: ClassVar[tuple[Count, ...]] = (Count("pair"), Count("reverse"), Count("dst"))
    """What the plan must count."""
    dim: ClassVar[int] = 24
    """Columns."""

    def __init__(self) -> None:
        super().__init__()
        rates = torch.tensor([1 / seconds for seconds in _SECONDS])
        self.register_buffer("rates", rates, persistent=False)
        self.rates: Tensor

    @staticmethod
    def recency() -> Tensor:
        """Return 24 weights that score pairs by recency, as logits, float32 `[24]`.

        6 (1 - p) + 3 (0.7 - d), where p and d are log(1 + age) / 16 of the latest event of the pair
        in either direction and of that of the destination; a term is 0 if there is none, so that
        nothing is held against those who are not known yet. A second ago they come to 6 and 2, and
        to 0 103 days and 20 hours ago.
        """
        pair, dst = [6.0, 0.0, -6.0, 0.0, 0.0, 0.0], [2.1, 0.0, -3.0, 0.0, 0.0, 0.0]
        return torch.tensor([*(0.0,) * 12, *pair, *dst])

    def forward(self, batch: Batch) -> Tensor:
        """Return the features of the batch's events and then of its negatives.

        Returns:
            float32 `[B * (1 + m), 24]`; does not synchronize.

        Raises:
            ValueError: If the batch has no such counts.
        """
        counts = batch.counts[: len(self.counts)]
        if len(counts) < len(self.counts):
            raise ValueError(
                f"pair features need {len(self.counts)} counts of the past, the batch has "
                f"{len(counts)}: make its plan with counts=model.counts, and list "
                "PairFeatures.counts first in the model's counts"
            )
        pair, reverse, dst = counts
        either = pair.num + reverse.num, _latest(pair.age, reverse.age)
        num = torch.stack([pair.num, reverse.num, either[0], dst.num], dim=-1)
        age = torch.stack([pair.age, reverse.age, either[1], dst.age], dim=-1)
        seen = (num > 0).float()
        seconds = age.clamp(min=0).float().mul_(batch.seconds_per_tick)
        logs = num.float().log1p_(), seconds.log1p().mul_(_LOG_SCALE)
        recency = torch.exp(-seconds.unsqueeze(-1) * self.rates).mul_(seen.unsqueeze(-1))
        found = torch.cat([torch.stack([seen, *logs], dim=-1), recency], dim=-1).flatten(-2)
        return torch.cat([found[:, 0], found[:, 1:].flatten(0, 1)])


def _latest(age: Tensor, other: Tensor) -> Tensor:
    """Return the lower of two ages, where -1 is none."""
    lower = torch.minimum(age, other)
    return torch.where(lower < 0, torch.maximum(age, other), lower)
