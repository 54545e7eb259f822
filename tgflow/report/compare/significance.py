"""Significance of differences between models: paired block bootstrap, Holm's correction.

All models share the resamples, so that differences are over the same events; seeds are resampled in
the outer loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tgflow.base.resampling import LEVEL, RESAMPLES, Interval, Resampling, Values

BLOCK = 1_000
"""Consecutive events of a block; fewer if there would be less than `LEAST_BLOCKS`."""
LEAST_BLOCKS = 30


def block_length(num: int) -> int:
    """Return the number of consecutive values of a block."""
    return max(1, min(BLOCK, num // LEAST_BLOCKS))


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of the first model's mean to the second's."""

    first: str
    second: str
    interval: Interval
    chance: float
    """Share of the resamples in which the first is better; ties count one half."""
    p: float
    """Two-sided p-value of no difference."""
    p_holm: float
    """The p-value corrected for all compared pairs."""

    @property
    def is_significant(self) -> bool:
        """Whether the two differ significantly at 5 %, over all pairs together."""
        return self.p_holm < LEVEL


@dataclass(frozen=True, slots=True)
class Significance:
    """Means of some models, with intervals and differences."""

    means: dict[str, Interval]
    """Mean by model, the best one first."""
    differences: list[Difference]
    block: int
    num_blocks: int

    def between(self, first: str, second: str) -> Difference:
        """Return the difference of a pair, in either order."""
        return next(d for d in self.differences if {d.first, d.second} == {first, second})

    def p_of_best(self, label: str) -> float | None:
        """Return Holm's p-value of no difference from the best model; None for the best itself."""
        best = next(iter(self.means))
        return None if label == best else self.between(best, label).p_holm


def compare_means(
    scores: Mapping[str, Values],
    *,
    block: int | None = None,
    num_resamples: int = RESAMPLES,
    seed: int = 0,
) -> Significance:
    """Return how the means of models differ.

    Args:
        scores: By model `[S, N]`, for each seed and event; higher is better. Models may have
            different numbers of seeds; those with equal numbers are paired by seed.
        block: Values of a block; None: by `block_length`.
        num_resamples: Number of resamples.
        seed: Seed of the resamples.

    Raises:
        ValueError: If there are no values, or models differ in their number.

    Example:
        >>> ranks = torch.rand(1, 300, generator=torch.Generator().manual_seed(0)).double().numpy()
        >>> found = tg.compare.compare_means({"tgn": ranks + 0.1, "tgat": ranks})
        >>> list(found.means), found.between("tgn", "tgat").is_significant
        (['tgn', 'tgat'], True)
    """
    sizes = {values.shape[1] for values in scores.values()}
    if len(sizes) != 1:
        raise ValueError(f"models must have values of the same events, got {sorted(sizes)}")
    num = sizes.pop()
    resampling = Resampling(num, block or block_length(num), num_resamples, seed)
    resampled = {label: resampling.means(values) for label, values in scores.items()}
    means = {label: float(values.mean()) for label, values in scores.items()}
    order = sorted(scores, key=lambda label: (-means[label], label))
    found: list[tuple[str, str, Interval, float, float]] = []
    for first, second in combinations(order, 2):
        drawn = resampled[first] - resampled[second]
        less = min((drawn > 0).sum(), (drawn < 0).sum()) + (drawn == 0).sum()
        p = min(1.0, 2 * (float(less) + 1) / (len(drawn) + 1))
        interval = Interval.of(means[first] - means[second], drawn)
        found.append((first, second, interval, chance_above(drawn), p))
    corrected = holm([each[-1] for each in found])
    return Significance(
        {label: Interval.of(means[label], resampled[label]) for label in order},
        [Difference(*each, q) for each, q in zip(found, corrected, strict=True)],
        resampling.length,
        resampling.num_blocks,
    )


def ap_values(score: Values, is_positive: NDArray[np.bool_]) -> Values:
    """Return a value for each event, whose mean is the average precision of all, `[N]`.

    Each is the average precision plus the event's influence on it (its derivative by the event's
    weight, times N), so that resampled means estimate the spread of the average precision. Some
    events are positive and some are not.
    """
    _, group = np.unique(-score, return_inverse=True)  # equal scores together, the highest first
    positive, every = np.bincount(group, is_positive), np.bincount(group)
    true, above = np.cumsum(positive), np.cumsum(every)
    precision, num = true / above, is_positive.sum()
    ap = float((precision * positive).sum() / num)
    # One more event precedes all of at most its score, and changes their precision.
    loss = np.cumsum((positive * true / above**2)[::-1])[::-1]
    gain = np.cumsum((positive / above)[::-1])[::-1] - loss
    change = np.where(is_positive, precision[group] - ap + gain[group], -loss[group])
    values: Values = ap + change * (len(score) / num)
    return values


def chance_above(drawn: Values) -> float:
    """Return the share of resampled differences that are above 0; those that are 0 count half."""
    return float(((drawn > 0).sum() + (drawn == 0).sum() / 2) / len(drawn))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple tests (Holm, 1979), in their order, at most 1."""
    out, highest = [0.0] * len(ps), 0.0
    for rank, number in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[number]))
        out[number] = highest
    return out
