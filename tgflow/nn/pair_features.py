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
    """What the log knows of each pair (u, v) that a batch scores: 14 columns, zeros for never.

    Of events from u to v, and then of those from v to u: whether there are any, log(1 + number),
    log(1 + age of the latest) / 16, and exp(-age / 1 h), exp(-age / 1 d), exp(-age / 1 w); ages in
    seconds. Of events to v from anywhere: log(1 + number), log(1 + age) / 16.

    It has no parameters. A model that reads it lists `PairFeatures.counts` first of its `counts`.

    Example:
        `LinkDecoder(dim, pair_dim=PairFeatures.dim)`
    """

    counts: ClassVar[tuple[Count, ...]] = (Count("pair"), Count("reverse"), Count("dst"))
    """What the plan must count."""
    dim: ClassVar[int] = 14
    """Columns."""

    def __init__(self) -> None:
        super().__init__()
        rates = torch.tensor([1 / seconds for seconds in _SECONDS])
        self.register_buffer("rates", rates, persistent=False)
        self.rates: Tensor

    def forward(self, batch: Batch) -> Tensor:
        """Return the features of the batch's events and then of its negatives.

        Returns:
            float32 `[B * (1 + m), 14]`; does not synchronize.

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
        num = torch.stack([count.num for count in counts], dim=-1)
        age = torch.stack([count.age for count in counts], dim=-1)
        seconds = age.clamp(min=0).float().mul_(batch.seconds_per_tick)
        seen = (num > 0).float()
        logs = torch.stack([num.float().log1p_(), seconds.log1p().mul_(_LOG_SCALE)], dim=-1)
        recency = torch.exp(-seconds[..., :2, None] * self.rates).mul_(seen[..., :2, None])
        pairs = torch.cat([seen[..., :2, None], logs[..., :2, :], recency], dim=-1)
        found = torch.cat([pairs.flatten(-2), logs[..., 2, :]], dim=-1)
        return torch.cat([found[:, 0], found[:, 1:].flatten(0, 1)])
