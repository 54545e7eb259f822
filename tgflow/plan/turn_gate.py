"""Turns that all ranks take alike, and stop taking after the same one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tgflow.peers import Peers, RanksDisagree

KIND = "turns"
"""What going through counts as in `Traffic`: 8 bytes to each other rank, once a turn."""


class TurnsOver(Exception):
    """A rank takes no more turns, so there are none for the others."""


class TurnGate:
    """Through it the ranks go together before each turn, in the group "plan".

    A turn is prepared ahead of the training, so when all ranks stop after the same micro-batch some
    may have begun the next turn, and wait there for others that never will. Who stops leaves, and
    lets them go.

    Args:
        peers: The ranks.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._taking = threading.Lock()
        self._is_over = False

    @contextmanager
    def turn(self, num_tasks: int) -> Iterator[None]:
        """Enclose a turn; waits for all ranks.

        Args:
            num_tasks: Of the turn, at least 1, the same for all ranks.

        Raises:
            TurnsOver: If a rank has left, this one included.
            RanksDisagree: If another rank takes another turn.
            PeerLost: If one is gone.
        """
        with self._taking:
            said = [0] if self._is_over else self._gathered(num_tasks)
            if 0 in said:
                self._is_over = True
                raise TurnsOver
            self._check(said)
            yield

    def leave(self) -> None:
        """Take no more turns, as no other rank does; waits for all, and for one under way.

        Raises:
            PeerLost: If another rank is gone.
        """
        with self._taking:
            if not self._is_over:
                self._is_over = True
                self._gathered(0)

    def _gathered(self, num_tasks: int) -> list[int]:
        mine, sizes = torch.tensor([num_tasks]), [1] * self._peers.world
        said: list[int] = self._peers.gather(mine, sizes, kind=KIND, group="plan").tolist()
        return said

    def _check(self, said: list[int]) -> None:
        own = said[self._peers.rank]
        for rank, num_tasks in enumerate(said):
            if num_tasks != own:
                raise RanksDisagree(
                    f"rank {rank} prepares {num_tasks} batches at once, and rank "
                    f"{self._peers.rank} {own}: a stream must come to all ranks in the same batches"
                )
