"""Exact link prediction metrics with tie handling, per batch or pooled.

Average precision and ROC AUC compare each positive with one negative, as DyGLib does: its published
results are means over batches (`LinkMetrics.result()["ap"]`), not over events (`"ap_pooled"`).
MRR and Hits@k rank one positive among its own `m` negatives, as TGB does. Forecasts with
graded gains are measured by NDCG@k, also as in TGB.

Scores of mathematically equal inputs differ in their last bits with the batch size, the number
of threads and the CPU. AP, AUC and ranks therefore treat float32 scores as tied if they differ
by at most `TIED * max(1, abs(score))`. float64 scores are tied only if they are equal.

    >>> tg.metrics.roc_auc(torch.tensor([0.9, 0.8]), torch.tensor([0.1, 0.85]))
    0.75
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from tgflow.base import _native
from tgflow.base.choices import METRIC_TITLES, MRR_OF_SOME

TIED = 2.0**-17
"""Relative difference below which float32 scores are tied: 64 units in the last place."""
UNDEFINED = float("nan")
"""Value of a metric without positives or without negatives."""
MEAN_OVER_BATCHES = ("ap", "auc")
"""Metrics averaged over batches; the others are averaged over events."""
RESERVED = (
    *METRIC_TITLES,
    "ap_pooled",
    "auc_pooled",
    "loss",
    "num_events",
    "replay_ap",
    "mrr_events",
    "mrr_error",
    "mrr_squares",
    *(f"{name}_events" for name in MRR_OF_SOME),
)
"""Names in results that no registered metric may have."""


class BatchMetric(Protocol):
    """A user-defined metric; one instance measures one batch.

    Trainers call `update` and then `compute` once each, and average the values over events.
    """

    def update(self, positive: Tensor, negative: Tensor) -> None:
        """Add the scores of a batch, on the CPU; must not change them.

        Args:
            positive: Scores of its events, float `[B]`, `B` at least 1; higher is likelier.
            negative: Scores of their negatives, float `[B, m]`, `m` at least 1.
        """

    def compute(self) -> float:
        """Return the batch's value; non-finite values are skipped."""


Figures: TypeAlias = dict[str, tuple[float, float]]
"""Means by name, and their weights: how many events, or 1 for a mean over batches."""
Metrics: TypeAlias = Mapping[str, Callable[[], BatchMetric]]
"""User-defined metrics by their names in results."""
_registered: dict[str, Callable[[], BatchMetric]] = {}


def register(name: str, metric: Callable[[], BatchMetric]) -> None:
    """Register a metric for `TrainingConfig.metrics`; replaces one of the same name.

    Args:
        name: An identifier, also its name in results.
        metric: Makes one `BatchMetric` for each batch, such as its class.

    Raises:
        ValueError: If the name is not an identifier, or is that of a built-in metric.
    """
    _check_name(name)
    _registered[name] = metric


def find_metrics(names: Sequence[str]) -> Metrics:
    """Return the metrics of registered names, or of the caller's classes as `module:Class`.

    A class that `--metric` has given takes precedence over one registered as `Class`.

    Raises:
        CodeNotGiven: If the caller has neither given nor registered a metric.
        ValueError: If two have the same name, or one is not a metric.
    """
    from tgflow.base.own_code import CodeNotGiven, find

    found: dict[str, Callable[[], BatchMetric]] = {}
    for each in names:
        name = each.rpartition(":")[2]
        if name in found:
            raise ValueError(f"two metrics are named {name!r}; rename one")
        _check_name(name)
        kind: Any = find(each) or _registered.get(name)
        if kind is None:
            if ":" in each:
                way_out = f"tg.metrics.register({name!r}, ...)"
                raise CodeNotGiven.of(f"the metric {each!r}", "--metric", way_out)
            known = ", ".join(_registered) or "none"
            raise CodeNotGiven(
                f"there is no metric {each!r} (registered: {known}); give --metric "
                "path/to/file.py:Class, or call tg.metrics.register first"
            )
        # only a class shows its methods before it is called
        made = kind if isinstance(kind, type) else kind()
        if not all(callable(getattr(made, method, None)) for method in ("update", "compute")):
            raise ValueError(f"metric {each!r} must have the methods update and compute")
        found[name] = kind
    return found


def _check_name(name: str) -> None:
    if not name.isidentifier() or name in RESERVED:
        raise ValueError(
            f"a metric's name must be an identifier other than {', '.join(RESERVED)}, got {name!r}"
        )


def measure(metrics: Metrics, positive: Tensor, negative: Tensor) -> dict[str, float]:
    """Return the finite values of metrics for the scores of one batch, by name."""
    values: dict[str, float] = {}
    for name, make in metrics.items() if negative.numel() else ():
        metric = make()
        metric.update(positive, negative)
        values[name] = float(metric.compute())
    return {name: value for name, value in values.items() if math.isfinite(value)}


def average_precision(positive: Tensor, negative: Tensor) -> float:
    """Return the area under the precision-recall steps, as scikit-learn defines it.

    Args:
        positive: Scores of true events, any float dtype, any shape; higher is likelier.
        negative: Scores of false events, likewise. Tied scores form one step.

    Returns:
        In (0, 1]; `UNDEFINED` if there are no positives or no negatives. Synchronizes. O(n log n).

    Raises:
        ValueError: If a score is NaN.
    """
    return _compared(positive, negative)[0]


def roc_auc(positive: Tensor, negative: Tensor) -> float:
    """Return the probability that a positive scores above a negative, ties counting one half.

    Arguments, result and errors are those of `average_precision`; the value lies in [0, 1].
    """
    return _compared(positive, negative)[1]


def ranks(positive: Tensor, negative: Tensor) -> Tensor:
    """Return each positive's rank among its own negatives: 1 is best, ties get the middle rank.

    This is the mean of the optimistic rank (before all equals) and the pessimistic one, as in
    TGB's evaluator, so a model with constant scores gains nothing.

    Args:
        positive: Scores, float `[B]`.
        negative: Scores, float `[B, m]`.

    Returns:
        float64 `[B]`, from 1 to `m + 1`, on the CPU. Synchronizes.

    Raises:
        ValueError: If a score is NaN, or the shapes do not fit.
    """
    if positive.dim() != 1 or negative.dim() != 2 or len(positive) != len(negative):
        raise ValueError(
            "ranks needs positive [B] and negative [B, m], "
            f"got {list(positive.shape)} and {list(negative.shape)}"
        )
    out = torch.empty(len(positive), dtype=torch.float64)
    tolerance = _tolerance(positive, negative)
    _native.rank_scores(_on_host(positive), _on_host(negative), tolerance, out)
    return out


def mrr(positive: Tensor, negative: Tensor) -> float:
    """Return the mean of 1 / rank (see `ranks`); `UNDEFINED` without rows or negatives."""
    if not negative.numel():
        return UNDEFINED
    return float(ranks(positive, negative).reciprocal().mean())


def ndcg_at_k(scores: Tensor, gains: Tensor, k: int) -> float:
    """Return the normalized DCG@k of an order by scores: DCG@k over that of the ideal order.

    Equal scores share the discounts of their places, as in scikit-learn's `ndcg_score`.

    Args:
        scores: float `[B, n]`: order of each row, the highest first.
        gains: float `[B, n]`: gain of each item, at least 0.
        k: Number of places that count.

    Returns:
        The mean over rows, in [0, 1]; a row without any gain counts 0. `UNDEFINED` without rows.
        Synchronizes. O(B n log n).

    Raises:
        ValueError: If `k < 1`, a score is NaN, a gain is negative or NaN, or the shapes differ.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if scores.dim() != 2 or scores.shape != gains.shape:
        shapes = f"{list(scores.shape)} and {list(gains.shape)}"
        raise ValueError(f"ndcg_at_k needs scores [B, n] and gains [B, n], got {shapes}")
    if not scores.numel():
        return UNDEFINED
    if scores.isnan().any() or not (gains >= 0).all():
        raise ValueError("ndcg_at_k needs scores that are no NaN, and gains of at least 0")
    ordered, order = scores.sort(dim=1, descending=True)
    gains = gains.double()
    place = torch.arange(2, scores.shape[1] + 2, device=scores.device).double()
    worth = place.log2().reciprocal().where(place < k + 2, 0.0)
    found = (_mean_of_ties(ordered, gains.gather(1, order)) * worth).sum(1)
    ideal = (gains.sort(dim=1, descending=True).values * worth).sum(1)
    return float((found / ideal).where(ideal > 0, 0.0).mean())


def _mean_of_ties(ordered: Tensor, values: Tensor) -> Tensor:
    """Return `values` with those of equal scores replaced by their mean, each `[B, n]`."""
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    tie = is_first.cumsum(1) - 1
    sums = torch.zeros_like(values).scatter_add_(1, tie, values)
    sizes = torch.zeros_like(values).scatter_add_(1, tie, torch.ones_like(values))
    return (sums / sizes).gather(1, tie)


class LinkMetrics:
    """Collects scores batch by batch and summarizes them per batch and pooled.

    Stores two scores per event, for the pooled AP and AUC. With `exact`, float32 scores, too, are
    tied only if they are equal.
    """

    def __init__(self, metrics: Metrics | None = None, *, exact: bool = False) -> None:
        self._metrics, self._exact = {} if metrics is None else metrics, exact
        self.num_events = 0
        self._sums: Figures = {}
        self._pool: list[tuple[Tensor, Tensor]] = []

    def add(self, positive: Tensor, negative: Tensor) -> dict[str, float]:
        """Add one batch and return its metrics.

        Args:
            positive: Scores, float `[B]`.
            negative: Scores, float `[B, m]`. AP and AUC use the first column; MRR and Hits@k use
                all, and are omitted if `m` is 1.

        Returns:
            `ap`, `auc`, and with `m > 1` also `mrr` and `hits@k`; nothing for an empty batch.

        Raises:
            ValueError: If a score is NaN, or the shapes do not fit.

        Synchronizes.
        """
        wide = self._exact or torch.float64 in (positive.dtype, negative.dtype)
        dtype = torch.float64 if wide else torch.float32
        positive, negative = (x.detach().to("cpu", dtype) for x in (positive, negative))
        if not negative.numel():
            return {}
        of_events, of_ranked, *_ = link_figures(positive, negative)
        num = len(positive)
        own = {name: (x, num) for name, x in measure(self._metrics, positive, negative).items()}
        batch = of_events | of_ranked | own
        self.num_events += num
        for name, (value, weight) in batch.items():
            total, weights = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = total + value * weight, weights + weight
        self._pool.append((positive.clone(), negative[:, 0].clone()))
        return {name: value for name, (value, _) in batch.items()}

    def result(self) -> dict[str, float]:
        """Return the means so far, without undefined ones.

        `ap` and `auc` are means over batches, `ap_pooled` and `auc_pooled` take all scores as one,
        `mrr`, `hits@k` and user-defined metrics are means over events.
        """
        out = {name: total / weight for name, (total, weight) in self._sums.items()}
        if self._pool:
            positive, negative = (torch.cat(part) for part in zip(*self._pool, strict=True))
            out["ap_pooled"] = average_precision(positive, negative)
            out["auc_pooled"] = roc_auc(positive, negative)
        return out


class LinkFigures(NamedTuple):
    """Figures of a batch, without those of no event."""

    of_events: Figures
    """`ap` and `auc` with the first negatives."""
    of_ranked: Figures
    """`mrr` and `hits@k` of ranks among several."""
    of_some: Figures
    """`mrr_returns`, `mrr_first` and further negatives, of some of these."""
    squares: float | None
    """Sum of the squared reciprocal ranks, None without `mrr`."""
    replay_ap: float | None
    """Average precision of replayed events with their first negatives, None without any."""


def link_figures(
    positive: Tensor,
    negative: Tensor,
    learned: tuple[Tensor, Tensor, int, Tensor | None] | None = None,
    **given: Any,
) -> LinkFigures:
    """Return the figures of a batch. Synchronizes.

    Args:
        positive: Scores, float `[B]`.
        negative: Scores, float `[B, m]`: random negatives, then further ones.
        learned: Scores of learned events, float `[N]` and `[N, m]`, how many of them come before
            the replayed ones, and the mask.
        given: `mask`, bool `[B, m]`: which negatives there are, all of them of one event in `every`
            from log position `begin` on. `ranks`, float64 `[B]` with NaN for events that are not
            ranked, instead of those among random negatives. `is_first`, bool `[B]`: which events
            are the first ones of their pair. `further`: names and numbers of further negatives.

    Raises:
        ValueError: If a score is NaN.
    """
    dtypes = positive.dtype, negative.dtype
    if dtypes != (torch.float32, torch.float32):
        positive, negative = _on_host(positive), _on_host(negative)
        if learned is not None:
            learned = _on_host(learned[0]), _on_host(learned[1]), *learned[2:]
    events, ranked, some, *others = _native.link_figures(
        positive, negative, 0.0 if torch.float64 in dtypes else TIED, learned=learned, **given
    )
    return LinkFigures(dict(events), dict(ranked), dict(some), *others)


def are_finite(values: Sequence[Tensor]) -> bool:
    """Return whether all values are finite: float, of any shape. Synchronizes."""
    for x in values:
        if not x.is_cpu or x.dtype not in _IN_CORE:
            return _native.are_finite([*map(_on_host, values)])
    return _native.are_finite(values)


_IN_CORE = (torch.float32, torch.float64)


def _compared(positive: Tensor, negative: Tensor) -> tuple[float, float]:
    """Return the average precision and the ROC AUC of scores of any shape."""
    if not positive.numel() or not negative.numel():
        return UNDEFINED, UNDEFINED
    scores = _on_host(positive).flatten(), _on_host(negative).flatten()
    return _native.compare_scores(*scores, _tolerance(positive, negative))


def _tolerance(positive: Tensor, negative: Tensor) -> float:
    return 0.0 if torch.float64 in (positive.dtype, negative.dtype) else TIED


def _on_host(scores: Tensor) -> Tensor:
    if not scores.is_cpu or scores.dtype not in _IN_CORE:
        scores = scores.cpu().double()
    return scores
