"""Detection of losses and scores that are not finite; errors name the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from tgflow.base.metrics import are_finite
from tgflow.graph.batch import HostEvents, StepBatch

_WAY_OUT = "lower the learning rate, set grad_clip, or look for features that are not finite"


class TrainingDiverged(RuntimeError):
    """Raised for a loss or score that is not finite; the message has the place and the fix.

    Args:
        text: The message.
        events: Log positions of the first and after the last new event of the batch.
    """

    before: tuple[int, int, int]
    """A trainer's position, segment and index before the micro-batch, unless a step synchronized.
    """

    def __init__(self, text: str, events: tuple[int, int]) -> None:
        super().__init__(text)
        self.events = events


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlace:
    """Position of a batch, without the batch itself: it holds no device memory."""

    epoch: int
    index: int
    num_new: int
    host: HostEvents

    @classmethod
    def of(cls, batch: StepBatch) -> Self:
        return cls(batch.epoch, batch.index, batch.num_new, batch.host)

    @property
    def new_events(self) -> tuple[int, int]:
        """Log positions of the first and after the last new event; two zeros without any."""
        return (self.host.begin, self.host.end) if self.num_new else (0, 0)

    def __str__(self) -> str:
        start, stop = self.new_events
        events = f"events [{start}, {stop})" if self.num_new else "no new events"
        return f"epoch {self.epoch}, batch {self.index}, {events}"


def elsewhere(place: BatchPlace) -> TrainingDiverged:
    """Return the error for a value that is not finite in slices computed by other ranks."""
    text = f"{place}: a score or the loss on another rank is not finite"
    return TrainingDiverged(f"{text}; {_WAY_OUT}", place.new_events)


def check_finite(
    place: BatchPlace,
    positive: Tensor,
    negative: Tensor,
    loss: Tensor | None = None,
    classes: Tensor | None = None,
) -> None:
    """Raise TrainingDiverged if a score or the loss of a batch is not finite."""
    if are_finite([x for x in (positive, negative, loss, classes) if x is not None]):
        return
    named = ("positive", positive), ("negative", negative), ("label's", classes)
    for name, values in named:
        if values is not None and not are_finite([values]):
            flat = values.detach().reshape(len(values), -1)
            row = int((~flat.isfinite()).any(1).nonzero()[0])
            bad = flat[row][~flat[row].isfinite()][0].item()
            raise TrainingDiverged(
                f"{place}: the {name} score of event {int(place.host.eid[row])} is {bad}; "
                f"{_WAY_OUT}",
                place.new_events,
            )
    assert loss is not None
    text = f"{place}: the loss is {loss.item()}; {_WAY_OUT}"
    raise TrainingDiverged(text, place.new_events)
