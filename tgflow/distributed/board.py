"""What each rank last said of itself: in the store that all see, as it is in no step with training.

So rank 0 knows how the others are, and what they ask for, also while no events come.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import median_low
from typing import TYPE_CHECKING, Self

import torch

from tgflow.distributed.control import RankFigures
from tgflow.peers import Peers

if TYPE_CHECKING:
    from tgflow.distributed._stores import Store


class Board:
    """The latest figures of each rank; its methods may be called by any thread.

    Args:
        store: Keys and values that all ranks see.
        rank: This rank.
        world: How many ranks there are.
    """

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self._store, self._rank, self._world = store, rank, world

    @classmethod
    def of(cls, peers: Peers) -> Self:
        """Return the board of ranks that have joined."""
        from tgflow.distributed.ranks import Ranks

        assert isinstance(peers, Ranks)
        return cls(peers.store, peers.rank, peers.world)

    def post(self, figures: RankFigures) -> None:
        """Replace what this rank has said; RuntimeError if the store is gone."""
        self._store.set(_key(self._rank), json.dumps(figures.to_tensor().tolist()))

    def read(self) -> dict[int, RankFigures]:
        """Return what ranks have said, by rank; RuntimeError if the store is gone."""
        said = [rank for rank in range(self._world) if self._store.check([_key(rank)])]
        return {rank: _figures(self._store.get(_key(rank))) for rank in said}


def _key(rank: int) -> str:
    return f"figures/{rank}"


def _figures(said: bytes) -> RankFigures:
    return RankFigures.from_tensor(torch.tensor(json.loads(said), dtype=torch.float64))


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
