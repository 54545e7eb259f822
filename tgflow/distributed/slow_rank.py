"""Which rank computes longer than the others, for all wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low

from tgflow.distributed.control import RankFigures


class SlowRank:
    """Finds a rank that computes longer than the others, once for each.

    All ranks do the same micro-batches, so over the same time their seconds can be compared.

    Args:
        factor: Of the median, beyond which a rank is slow.
    """

    def __init__(self, factor: float = 1.5) -> None:
        self._factor = factor
        self._before: Mapping[int, RankFigures] = {}
        self._named: set[int] = set()

    def find(self, figures: Mapping[int, RankFigures]) -> tuple[int, float] | None:
        """Return the slowest rank since the last call, and over the median, if it is too slow.

        Of two ranks the median is the faster one. A rank that was named is not named again.
        """
        spent = {
            rank: found.compute_seconds - self._before[rank].compute_seconds
            for rank, found in figures.items()
            if rank in self._before
        }
        self._before = dict(figures)
        if len(spent) < 2:
            return None
        median = median_low(spent.values())
        rank = max(spent, key=lambda each: spent[each])
        if rank in self._named or median <= 0 or spent[rank] <= self._factor * median:
            return None
        self._named.add(rank)
        return rank, spent[rank] / median
