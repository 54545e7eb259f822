"""Orders and figures that the ranks of a trainer exchange with each micro-batch."""

from __future__ import annotations

from collections.abc import Callable

from tgflow.distributed.control import Order, RankFigures, decide
from tgflow.peers import Peers


class RankControl:
    """Sends the orders that a runner asks for to all ranks.

    An order is asked for until the runner takes it back. It reaches rank 0 with this rank's
    figures, and comes back as the order of a later micro-batch: of the next one, if rank 0 asks
    itself. All ranks have the same order after the same micro-batch.
    """

    def __init__(self, peers: Peers, compute_seconds: Callable[[], float]) -> None:
        self._peers, self._compute_seconds = peers, compute_seconds
        self.asks = Order.NONE
        """Orders that this rank asks for; for a runner to set, from any thread."""
        self.memory_bytes = 0
        """Memory of this process; for a runner to set."""
        self.order = Order.NONE
        """Order to all ranks after the latest micro-batch."""
        self.figures: tuple[RankFigures, ...] = ()
        """Of each rank, as of the latest micro-batch; on rank 0 of several."""

    def begin(self) -> None:
        """Begin a micro-batch, which has no order yet."""
        self.order = self.asks if self._peers.world == 1 else Order.NONE

    def word(self) -> Order:
        """Return the order of rank 0: of what all ranks ask for."""
        return decide(self.asks, self.figures[1:])

    def own_figures(self) -> RankFigures:
        """Return the figures of this rank."""
        return RankFigures.of(
            self._peers.traffic,
            compute_seconds=self._compute_seconds(),
            memory_bytes=self.memory_bytes,
            asks=self.asks,
        )

    def hear(self, order: Order, figures: tuple[RankFigures, ...]) -> None:
        """Take the order of rank 0, and on rank 0 the figures of all."""
        self.order |= order
        self.figures = figures
