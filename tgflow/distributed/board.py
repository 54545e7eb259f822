"""What each rank asks for: in the store that all see, as it cannot wait for a micro-batch.

How a rank is goes to rank 0 with its parcels; a signal, or memory that is short, also counts while
no events come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tgflow.distributed.control import Order
from tgflow.peers import Peers

if TYPE_CHECKING:
    from tgflow.distributed._stores import Store


class Board:
    """What each rank would have rank 0 order; its methods may be called by any thread.

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

    def ask(self, order: Order) -> None:
        """Replace what this rank asks for; RuntimeError if the store is gone."""
        self._store.set(_key(self._rank), str(int(order)))

    def read(self) -> dict[int, Order]:
        """Return what ranks ask for, by rank; RuntimeError if the store is gone."""
        asking = [rank for rank in range(self._world) if self._store.check([_key(rank)])]
        return {rank: Order(int(self._store.get(_key(rank)))) for rank in asking}


def _key(rank: int) -> str:
    return f"asks/{rank}"
