"""Which rows of a table a rank owns: stripes of rows next to each other, each with one owner."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from tgflow.peers import PARTS, Shard

STRIPE = 64
"""Rows next to each other that have one owner."""
_BITS = PARTS.bit_length() - 1
_PART_OF = torch.tensor([int(f"{place:0{_BITS}b}"[::-1], 2) for place in range(PARTS)])
"""The part of each stripe of a round, int64 `[PARTS]`: its place with its bits the other way round
(van der Corput, 1935), so that stripes next to each other are with different ranks, whatever the
world. The rows that are read most are the newest, of a few stripes."""


class Stripes:
    """The rows that a rank owns, by arithmetic.

    Stripe i is in part `_PART_OF[i % PARTS]`: each part has one stripe of every `PARTS`, a round.
    Owned rows have *local* ids, which are dense and in the order of the ids.

    Args:
        shard: Which rank, of how many; None: one that owns all.
    """

    def __init__(self, shard: Shard | None = None) -> None:
        self.shard = Shard() if shard is None else shard
        """Which parts are owned."""
        owned = self.shard.owns(_PART_OF)
        self._places = owned.nonzero().squeeze(1)
        self._before = torch.cat([torch.zeros(1, dtype=torch.int64), owned.cumsum(0)])

    def owner(self, ids: Tensor) -> Tensor:
        """Return the rank of each row, each id at least 0: int64 of the shape of `ids`."""
        return self.shard.owner(_PART_OF[ids // STRIPE % PARTS])

    def owns(self, ids: Tensor) -> Tensor:
        """Return whether each row is owned: bool of the shape of `ids`, False below 0."""
        return (self.owner(ids) == self.shard.rank) & (ids >= 0)

    def local(self, ids: Tensor) -> Tensor:
        """Return the local ids of owned rows, int64 of the shape of `ids`."""
        stripe = ids // STRIPE
        whole, rest = stripe // PARTS * len(self._places), self._before[stripe % PARTS]
        return (whole + rest) * STRIPE + ids % STRIPE

    def ids(self, local: Tensor) -> Tensor:
        """Return the rows that have these local ids: what `local` undoes."""
        stripe, num = local // STRIPE, len(self._places)
        return (stripe // num * PARTS + self._places[stripe % num]) * STRIPE + local % STRIPE

    def count(self, size: int) -> int:
        """Return how many of the first `size` rows are owned."""
        rounds, rest = divmod(size, STRIPE * PARTS)
        place, rows = divmod(rest, STRIPE)
        before, until = (int(self._before[each]) for each in (place, place + 1))
        return (rounds * len(self._places) + before) * STRIPE + (until - before) * rows


@cache
def stripes_of_part(part: int) -> Stripes:
    """Return the rows of one of the `PARTS`: those of a rank of the largest world."""
    return Stripes(Shard(part, PARTS))


def parts_with_rows(size: int) -> list[int]:
    """Return the parts that have any of the first `size` rows, in order."""
    parts: list[int] = _PART_OF[: -(-size // STRIPE)].sort().values.tolist()
    return parts


def whole_stripes(num_rows: int) -> int:
    """Return how many of `num_rows` rows are in whole stripes; at least one stripe."""
    return max(1, num_rows // STRIPE) * STRIPE
