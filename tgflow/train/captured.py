"""Steps of recurring shapes, captured once and replayed: the host launches one thing a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.cuda.device import CapturedWork, Device

WARM_UPS = 3
"""Steps of a shape that run as they are, before it is captured: by then all is compiled."""
MOST_GRAPHS = 8
"""Further shapes run as they are."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class _Captured(Generic[Result]):
    batch: Batch
    """Whose tensors each replay reads."""
    fixed: list[Tensor]
    """Of the model's state, as they were: a replay reads and writes these."""
    result: Result
    work: CapturedWork


class CapturedCalls:
    """Runs functions of batches, by replays of CUDA graphs where shapes recur.

    A replay does what the function did when it was captured, with the values that are in the
    batch's tensors now; whatever else changes from batch to batch must be in the device's memory.

    Args:
        device: Where they run.
        fixed: Returns tensors of the model's state; what was captured holds as long as they are
            the same objects.
    """

    def __init__(self, device: Device, fixed: Callable[[], list[Tensor]]) -> None:
        self._device, self._fixed = device, fixed
        self._seen: Counter[Any] = Counter()
        self._captured: dict[Any, _Captured[Any]] = {}
        self.was_replay = False
        """Whether the latest call was a replay."""

    def call(
        self,
        name: str,
        batch: Batch,
        work: Callable[[Batch], Result],
        tensors: Callable[[Result], Sequence[Tensor]],
    ) -> Result:
        """Return `work(batch)`, or the same from a replay, whose tensors the next one overwrites.

        Does not synchronize, but while it captures.

        Args:
            name: Of the function; batches of one shape give it one graph.
            batch: On the device.
            work: Queues work on the current stream alone, and waits for nothing.
            tensors: Those of its result.
        """
        key, self.was_replay = (name, *_shape_of(batch)), False
        captured = self._captured.get(key)
        if captured is not None and not _same(captured.fixed, self._fixed()):
            del self._captured[key]  # the state has grown, and moved
            captured = None
        if captured is None:
            self._seen[key] += 1
            if self._seen[key] <= WARM_UPS or len(self._captured) >= MOST_GRAPHS:
                return work(batch)
            captured = self._captured[key] = self._capture(batch, work, tensors)
        for target, source in zip(captured.batch.tensors(), batch.tensors(), strict=True):
            target.copy_(source)
        captured.work.replay()
        self.was_replay = True
        result: Result = captured.result
        return result

    def _capture(
        self,
        batch: Batch,
        work: Callable[[Batch], Result],
        tensors: Callable[[Result], Sequence[Tensor]],
    ) -> _Captured[Result]:
        copied = batch.map(torch.clone)
        results: list[Result] = []

        def run() -> Sequence[Tensor]:
            results.append(work(copied))
            return tensors(results[-1])

        replayed = self._device.capture(run)
        return _Captured(copied, self._fixed(), results[0], replayed)


def _shape_of(batch: Batch) -> tuple[Any, ...]:
    """Return what captured work depends on of a batch, but for the values in its tensors."""
    shapes = tuple(tensor.shape for tensor in batch.tensors())
    return batch.num_new, batch.seconds_per_tick, len(batch.blocks), shapes


def _same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))
