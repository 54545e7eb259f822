"""Logistic regression in float64, for labels that are too few to train a network on."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tgflow.keys import derive_key


def fitted_logits(x: Tensor, label: Tensor, new: Tensor, num_classes: int) -> Tensor:
    """Fit mean cross-entropy + |W|^2 / (2 N) by L-BFGS, and return the logits of new rows.

    Columns are standardized by the mean and deviation of `x`.

    Args:
        x: float64 `[N, F]`.
        label: Classes, int64 `[N]`.
        new: float64 `[M, F]`.
        num_classes: Classes.

    Returns:
        float64 `[M, num_classes]`.
    """
    mean, deviation = x.mean(0), x.std(0, correction=0)
    deviation = deviation.where(deviation > 0, 1.0)
    x, new = ((each - mean) / deviation for each in (x, new))
    weight = torch.zeros(x.shape[1], num_classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = cross_entropy(x @ weight + bias, label) + weight.square().sum() / (2 * len(x))
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return (new @ weight + bias).detach()


def stratified_folds(label: Tensor, num_folds: int, seed: int) -> Iterator[Tensor]:
    """Yield the rows of each fold, bool `[N]`: each has its share of each class.

    Args:
        label: Classes, int64 `[N]`.
        num_folds: How many.
        seed: Of the draws.
    """
    fold = torch.empty_like(label)
    for each in torch.unique(label).tolist():
        rows = (label == each).nonzero().flatten()
        generator = torch.Generator().manual_seed(derive_key(seed, each) >> 1)
        fold[rows[torch.randperm(len(rows), generator=generator)]] = (
            torch.arange(len(rows)) % num_folds
        )
    return (fold == number for number in range(num_folds))
