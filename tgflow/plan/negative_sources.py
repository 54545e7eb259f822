"""Negatives from elsewhere than a prefix of the log: from given nodes, or of two kinds at once."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow.keys import derive_key
from tgflow.plan._native import PairIndex
from tgflow.plan.negatives import Negatives, NegativeSource, PairHistory


class PooledNegatives:
    """The event's source with a destination of a given pool, uniformly over the distinct ones.

    Args:
        pool: The destinations, int64 `[N]`, at least one; what comes twice counts once.
        num: Negatives per event, at least 1.
        collide: Whether a negative may be the event itself.

    Raises:
        ValueError: If the pool is empty.
    """

    def __init__(self, pool: Tensor, num: int = 1, *, collide: bool = False) -> None:
        if not len(pool):
            raise ValueError("negatives need a pool of at least one destination, got none")
        self.num = num
        self._collide = collide
        self._index = PairIndex()
        self._index.append(pool, pool)

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return `num` negatives for each event; `history`, `start` and `stop` do not matter.

        Raises:
            ValueError: If the pool has the event's destination alone, and they may not collide.
        """
        size = len(self._index)
        cut = torch.full_like(src, size)
        drawn = self._index.draw_destinations(
            key, src, dst, cut, self.num, size, collide=self._collide
        )
        return Negatives(src.unsqueeze(1).expand(-1, self.num), *drawn, own_sources=True)


class NegativesOfBoth:
    """Negatives of two kinds side by side: first those of one source, then those of another.

    What the first draws is what it draws alone.

    Args:
        first: Of the first `first.num` columns.
        second: Of the others.
    """

    def __init__(self, first: NegativeSource, second: NegativeSource) -> None:
        self.num = first.num + second.num
        self._sources = first, second

    def draw(
        self, history: PairHistory, key: int, src: Tensor, dst: Tensor, *, start: Tensor, stop: int
    ) -> Negatives:
        """Return the negatives of both for each event; see `NegativeSampler.draw`."""
        first, second = self._sources
        left = first.draw(history, key, src, dst, start=start, stop=stop)
        right = second.draw(history, derive_key(key, 2), src, dst, start=start, stop=stop)
        return Negatives(
            torch.cat([left.src, right.src], dim=1),
            torch.cat([left.dst, right.dst], dim=1),
            left.num_fallbacks + right.num_fallbacks,
            own_sources=left.own_sources and right.own_sources,
        )
