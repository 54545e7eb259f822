"""What goes between the runner of a trainer on ranks and the ranks, with each micro-batch."""

from __future__ import annotations

from collections.abc import Callable

from tgflow.distributed.control import Order, RankFigures, decide
from tgflow.peers import Peers


class RankControl:
    """Where a runner says what it would have done, and reads what all ranks are to do.

    What is asked stays asked until the runner takes it back. It reaches rank 0 with this rank's
    figures, and comes back as the order of a later micro-batch: of the next one, if rank 0 asks
    itself. All ranks have the same order after the same micro-batch. A world of one orders what it
    asks.

    Args:
        peers: The ranks.
        compute_seconds: Returns what this rank has computed so far.

    Example:
        >>> trainer.control.asks |= Order.CHECKPOINT  # on rank 0, or any other one
        >>> for record in trainer.steps(stream):
        ...     if Order.CHECKPOINT in trainer.control.order:  # of this very micro-batch
        ...         trainer.control.asks &= ~Order.CHECKPOINT
        ...         save(trainer)
    """

    def __init__(self, peers: Peers, compute_seconds: Callable[[], float]) -> None:
        self._peers, self._compute_seconds = peers, compute_seconds
        self.asks = Order.NONE
        """What this rank would have done; for a runner to set, from any thread."""
        self.memory_bytes = 0
        """What this rank's process holds; for a runner to set, to be among its figures."""
        self.order = Order.NONE
        """What all ranks are to do after the latest micro-batch."""
        self.figures: tuple[RankFigures, ...] = ()
        """How each rank is, as of the latest micro-batch; on rank 0 alone, and of several."""

    def begin(self) -> None:
        """Note that a micro-batch begins, which has no order yet."""
        self.order = self.asks if self._peers.world == 1 else Order.NONE

    def word(self) -> Order:
        """Return what rank 0 orders now: what it asks by now, and what others did at last."""
        return decide(self.asks, self.figures[1:])

    def own_figures(self) -> RankFigures:
        """Return how this rank is."""
        return RankFigures.of(
            self._peers.traffic,
            compute_seconds=self._compute_seconds(),
            memory_bytes=self.memory_bytes,
            asks=self.asks,
        )

    def hear(self, order: Order, figures: tuple[RankFigures, ...]) -> None:
        """Take what rank 0 has ordered, on rank 0 also how all are."""
        self.order |= order
        self.figures = figures
