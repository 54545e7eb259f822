"""Trains several libraries on one task in turns: a noisy machine is then noisy to all of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from tgflow.bench.options import Options
from tgflow.bench.task import Laps


def race(laps: Mapping[str, Laps], num_batches: int, options: Options) -> None:
    """Let all contenders take turns until the one with most batches a turn has seen `num_batches`.

    Args:
        laps: Contenders by name.
        num_batches: Batches of the task.
        options: Who is called after every turn.
    """
    for _ in range(-(-num_batches // max(each.batches for each in laps.values()))):
        for name, each in laps.items():
            each.run()
            recent = each.losses[-each.batches :]
            loss = sum(recent) / max(len(recent), 1)
            options.say(f"train: {name}, batch {len(each.losses):,}, loss {loss:.4f}")


def link_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """Return the mean cross-entropy of the positives plus that of the negatives."""
    return F.binary_cross_entropy_with_logits(
        positive, torch.ones_like(positive)
    ) + F.binary_cross_entropy_with_logits(negative, torch.zeros_like(negative))
