"""What all ranks do after a micro-batch: they hear it from rank 0, and do it at one position."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tgflow.distributed.control import Order, check_alike, checksum
from tgflow.peers import Alone, Peers, RanksDisagree

CHECKED_EVERY = 100
"""Micro-batches between two comparisons of the parameters."""
_KIND = "control"


class Orders:
    """Lets all ranks agree after each micro-batch; one rank alone agrees with itself.

    Args:
        peers: The ranks.
        parameters: Returns what all must hold alike, by name.
    """

    def __init__(
        self,
        peers: Peers | None = None,
        parameters: Callable[[], Mapping[str, Tensor]] = dict,
    ) -> None:
        self._peers: Peers = Alone() if peers is None else peers
        self._parameters = parameters
        self._step = 0

    @property
    def are_shared(self) -> bool:
        """Whether there are other ranks, so that all must call `agree` equally often."""
        return self._peers.world > 1

    def agree(self, wanted: Order) -> Order:
        """Return what all ranks do now. Waits for rank 0, and every 100th time for all ranks.

        Args:
            wanted: Read on rank 0: what it wants, and what it knows that others ask for.

        Raises:
            RanksDisagree: If ranks are at different micro-batches, or their parameters differ.
            PeerLost: If another rank is gone.
        """
        if not self.are_shared:
            return wanted
        self._step += 1
        word = torch.tensor([self._step, int(wanted)])
        self._peers.broadcast(word, kind=_KIND)
        step, order = word.tolist()
        if step != self._step:
            raise RanksDisagree(f"rank 0 is at micro-batch {step} and this one at {self._step}")
        if step % CHECKED_EVERY == 0:
            self._compare()
        return Order(order)

    def _compare(self) -> None:
        ones = [1] * self._peers.world
        sums = self._peers.gather(checksum(self._parameters()), ones, kind=_KIND)
        check_alike(torch.chunk(sums, self._peers.world), "the parameters")
