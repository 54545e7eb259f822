"""Batches of one event against many, in parts that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tgflow.batch import Batch
from tgflow.cuda.clock import WorkClock
from tgflow.cuda.device import Device
from tgflow.plan.device import DeviceBatches, OwnedBatches
from tgflow.plan.host import PinnedCopies
from tgflow.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Some events of a batch, with all their negatives; or all of them, to be stored."""

    index: int
    """Of the batch."""
    rows: slice
    is_last: bool
    """Whether the batch's scores are complete with it."""
    is_stored: bool = False
    """Whether it is the batch as it is stored: all events, one negative each, not to be scored."""


class PartedPlan:
    """The batches of a plan in parts, as a source for the loader: its batch `i` is part `i`.

    Args:
        plan: A plan that ends.
        max_pairs: Pairs of nodes to score at once, the events' own included; a part has at least
            one event.
        with_storing: Whether a batch's parts are followed by the whole of it, to be stored.
    """

    def __init__(self, plan: Plan, max_pairs: int, *, with_storing: bool) -> None:
        self._plan = plan
        size = max(1, max_pairs // (1 + plan.negatives.num))
        self.parts = [
            part for index in range(len(plan)) for part in _parts(plan, index, size, with_storing)
        ]
        """In order."""

    @property
    def gpu(self) -> Device | None:
        """Where batches are made: on a GPU, or in host memory."""
        return self._plan.gpu

    def __len__(self) -> int:
        return len(self.parts)

    def batch(self, epoch: int, index: int) -> Batch:
        """Return a part."""
        part = self.parts[index]
        return self._plan.part(epoch, part.index, part.rows, 1 if part.is_stored else None)

    def batches_on(self, gpu: Device, num_slabs: int, clock: WorkClock) -> DeviceBatches:
        """Return what makes the parts on a GPU, or copies them there; none in slabs."""
        if self.gpu is not None:
            return OwnedBatches(self.batch)
        copies = PinnedCopies(gpu, clock)
        return OwnedBatches(lambda epoch, index: copies.of_batch(self.batch(epoch, index)))


def _parts(plan: Plan, index: int, size: int, with_storing: bool) -> Iterator[BatchPart]:
    begin, end = plan.span(index)
    num = end - begin
    for start in range(0, num, size):
        yield BatchPart(index, slice(start, min(start + size, num)), start + size >= num)
    if with_storing:
        yield BatchPart(index, slice(0, num), False, True)
