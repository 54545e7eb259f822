"""Training losses of the scores of events and their negatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tgflow.choices import Loss
from tgflow.model import Scores


def bce(scores: Scores) -> Tensor:
    """Return the binary cross-entropy of logits, half of it from positives, half from negatives.

    With one negative a positive this is the mean over all scores.
    """
    return (softplus(-scores.positive).mean() + softplus(scores.negative).mean()) / 2


def softmax(scores: Scores) -> Tensor:
    """Return the cross-entropy of choosing each event among itself and its negatives."""
    candidates = torch.cat([scores.positive.unsqueeze(1), scores.negative], dim=1)
    return (candidates.logsumexp(dim=1) - scores.positive).mean()


def bpr(scores: Scores) -> Tensor:
    """Return -log sigmoid(positive - negative), the mean over all pairs of the two.

    Bayesian personalized ranking: Rendle et al., UAI 2009, arXiv:1205.2618.
    """
    return softplus(scores.negative - scores.positive.unsqueeze(1)).mean()


LOSSES: dict[Loss, Callable[[Scores], Tensor]] = {"bce": bce, "softmax": softmax, "bpr": bpr}
"""Each makes float `[]` of the scores of at least one event with at least one negative."""

LossLike: TypeAlias = Loss | Callable[[Scores], Tensor]
"""Name of a loss, or a function from scores to float `[]`, the mean over its rows."""


def loss_of(loss: LossLike) -> Callable[[Scores], Tensor]:
    """Return the loss of that name; a callable is returned as it is.

    Raises:
        ValueError: If there is no such loss.
    """
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, or a callable, got {loss!r}")
    return LOSSES[loss]
