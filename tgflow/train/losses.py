"""Training losses of the scores of events and their negatives."""

from __future__ import annotations

from collections.abc import Callable, Set
from inspect import signature
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tgflow.base.choices import Loss
from tgflow.nn._native import link_bce
from tgflow.nn.model import Scores

_TINY = torch.finfo(torch.float32).tiny


def weighted_mean(values: Tensor, weight: Tensor | None, log_q: Tensor | None = None) -> Tensor:
    """Return the mean of all values, each times the weight of its row; 0 if all weights are 0.

    With `log_q` the mean over rows of `[B, m]` of the mean weighted by exp(log_q), 0 for a row
    without any negative.
    """
    if log_q is not None:
        share = log_q.softmax(dim=1).nan_to_num(0.0)
        values = (values * share).sum(1)
    if weight is None:
        return values.mean()
    weight = weight / weight.max().clamp(min=_TINY)  # their sum could exceed float32
    total = weight.sum() * (values.numel() / len(values))
    rows = weight.view(-1, *[1] * (values.dim() - 1))
    return (values * rows).sum() / total.clamp(min=_TINY)


def bce(scores: Scores, weight: Tensor | None = None, log_q: Tensor | None = None) -> Tensor:
    """Return the binary cross-entropy of logits, half of it from positives, half from negatives.

    With one negative per positive this is the mean over all scores. With `log_q` random negatives
    have the weight of all that were not drawn, so that hard ones are as frequent as they would be.
    """
    if weight is None and log_q is None:
        return link_bce(scores.positive, scores.negative)
    positive = weighted_mean(softplus(-scores.positive), weight)
    return (positive + weighted_mean(softplus(scores.negative), weight, log_q)) / 2


def softmax(scores: Scores, weight: Tensor | None = None, log_q: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of choosing each event among itself and its negatives.

    `log_q` is added to the negatives' logits, so that sampled ones stand for those not drawn:
    Bengio and Senecal, IEEE Transactions on Neural Networks, 2008.
    """
    negative = scores.negative if log_q is None else scores.negative + log_q
    candidates = torch.cat([scores.positive.unsqueeze(1), negative], dim=1)
    return weighted_mean(candidates.logsumexp(dim=1) - scores.positive, weight)


def bpr(scores: Scores, weight: Tensor | None = None, log_q: Tensor | None = None) -> Tensor:
    """Return -log sigmoid(positive - negative), the mean over all pairs of the two.

    `log_q` weights the negatives as in `bce`. Bayesian personalized ranking: Rendle et al., UAI
    2009, arXiv:1205.2618.
    """
    return weighted_mean(softplus(scores.negative - scores.positive.unsqueeze(1)), weight, log_q)


def softmax_bce(
    scores: Scores, weight: Tensor | None = None, log_q: Tensor | None = None
) -> Tensor:
    """Return the sum of both: ranks each event, with scores that compare across events."""
    return softmax(scores, weight, log_q) + bce(scores, weight, log_q)


LOSSES: dict[Loss, Callable[..., Tensor]] = {
    "bce": bce,
    "softmax": softmax,
    "softmax+bce": softmax_bce,
    "bpr": bpr,
}
"""Returns float `[]` for the scores of at least one event with at least one negative; `weight` has
a weight for each event, and `log_q` is that of the batch, see `tgflow.Batch`."""

LossLike: TypeAlias = Loss | Callable[..., Tensor]
"""Name of a loss, or a function from scores to float `[]`, the mean over its rows.

For weighted events it takes `weight`, float `[B]`, and returns the weighted mean; for lists of
negatives (`NegativeSampler`) it takes `log_q`, float `[B, m]`, see `tgflow.Batch`."""


def parameters_of(loss: Callable[..., Tensor]) -> Set[str]:
    try:
        return signature(loss).parameters.keys()
    except ValueError:
        return frozenset()


def loss_of(loss: LossLike) -> Callable[..., Tensor]:
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, or a callable, got {loss!r}")
    return LOSSES[loss]
