"""What all ranks of a run do after a micro-batch: they do it at one position."""

from __future__ import annotations

from tgflow.distributed.control import Order
from tgflow.runtime.machine import rss_bytes
from tgflow.train.rank_control import RankControl


class Orders:
    """Lets all ranks agree after each micro-batch; a run that is alone does what it wants.

    Nothing is sent for it: what a rank wants goes along with the next micro-batch, and what rank 0
    orders has come with this one. How much memory a rank holds is noted here too, to go along.

    Args:
        control: Of the trainer, where there are other ranks.
    """

    def __init__(self, control: RankControl | None = None) -> None:
        self._control = control

    def agree(self, wanted: Order) -> Order:
        """Return what all ranks do now; a run that is alone: what is wanted.

        Args:
            wanted: What this rank wants. If that is not what all do now already, they do it after
                the next micro-batch, or one later if rank 0 has to be asked first.
        """
        if self._control is None:
            return wanted
        order = self._control.order
        self._control.memory_bytes = rss_bytes()
        self._control.asks = wanted & ~order
        return order
