"""Captures training steps as CUDA graphs and replays them by input shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from operator import is_
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tgflow.batch import Batch
from tgflow.cuda.device import CapturedWork, Device
from tgflow.model import Scores

WARM_UPS = 3
"""Calls with a shape that run as they are, before it is captured: by then all is compiled."""
MOST_SHAPES = 12
"""Batches of further shapes run as they are, unless one of these has not come for long."""
LONG = 512
"""Calls without a shape after which another one may have its place."""

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Shape:
    """The calls that were captured of batches of one shape. One may read another's result."""

    inputs: Batch
    fixed: list[Tensor]
    """Of the model's state, as they were: a replay reads and writes these."""
    holds: Batch | None = None
    """The batch whose values are in `inputs`."""
    calls: dict[str, tuple[Any, CapturedWork]] = field(default_factory=dict)
    last_used: int = 0


class CapturedCalls:
    """Runs functions of batches, by replays of CUDA graphs where shapes recur.

    A replay does what the function did when it was captured, with the values that are in the
    batch's tensors now; whatever else changes from batch to batch must be in the device's memory.
    So a replay goes on with the modules and parameters that a model had at its capture, also where
    others have taken their place since; it is noticed of the tensors of `fixed` alone.

    All graphs share one pool of memory, so that they take together what the largest one needs:
    they come one after the other, and a result is there until the next call, but for a call with
    the same batch that was captured later, which may read it.
    """

    def __init__(self, device: Device, fixed: Callable[[], list[Tensor]]) -> None:
        self._device, self._fixed = device, fixed
        self._pool = device.open_pool()
        self._seen: Counter[Any] = Counter()
        self._shapes: dict[Any, _Shape] = {}
        self._num_calls = 0
        self._replayed: _Shape | None = None

    @property
    def was_replay(self) -> bool:
        return self._replayed is not None

    def call(
        self,
        name: str,
        batch: Batch,
        work: Callable[[Batch], Result],
        tensors: Callable[[Result], Sequence[Tensor]],
        *,
        follows: bool = False,
    ) -> Result:
        """Return `work(batch)`, or the same from a replay, whose tensors the next one overwrites.

        Does not synchronize, except while it captures.
        """
        # all that captured work depends on of a batch, except the values in its tensors
        shapes = tuple(tensor.shape for tensor in batch.tensors())
        key = batch.num_new, batch.seconds_per_tick, len(batch.blocks), shapes
        latest, self._replayed = self._replayed, None
        self._num_calls += 1
        shape = self._found(key)
        if follows and shape is not latest:
            return work(batch)
        if not follows and (shape is None or name not in shape.calls):
            self._seen[name, key] += 1
            if self._seen[name, key] <= WARM_UPS:
                return work(batch)
            shape = self._with_room(key, batch) if shape is None else shape
        if shape is None:
            return work(batch)
        if shape.holds is not batch:
            _copy(shape.inputs.tensors(), batch.tensors())
            shape.holds = batch
        if name not in shape.calls:
            shape.calls[name] = self._capture(shape, work, tensors)
        shape.last_used = self._num_calls
        result: Result
        result, replayed = shape.calls[name]
        replayed.replay()
        self._replayed = shape
        return result

    def _found(self, key: Any) -> _Shape | None:
        """Return what was captured of a shape, unless the state has grown, and moved, since."""
        shape = self._shapes.get(key)
        if shape is None:
            return None
        now = self._fixed()
        if len(now) == len(shape.fixed) and all(map(is_, now, shape.fixed)):
            return shape
        del self._shapes[key]
        return None

    def _with_room(self, key: Any, batch: Batch) -> _Shape | None:
        """Return a place for another shape; None if all are in use."""
        if len(self._shapes) >= MOST_SHAPES:
            oldest = min(self._shapes, key=lambda known: self._shapes[known].last_used)
            if self._num_calls - self._shapes[oldest].last_used < LONG:
                return None
            del self._shapes[oldest]
        shape = self._shapes[key] = _Shape(batch.map(torch.clone), self._fixed(), batch)
        return shape

    def _capture(
        self,
        shape: _Shape,
        work: Callable[[Batch], Result],
        tensors: Callable[[Result], Sequence[Tensor]],
    ) -> tuple[Any, CapturedWork]:
        results: list[Result] = []

        def run() -> Sequence[Tensor]:
            results.append(work(shape.inputs))
            return tensors(results[-1])

        replayed = self._device.capture(run, self._pool)
        return results[0], replayed


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors of the same shapes, all of a dtype at once where they are contiguous."""
    of_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        if source.is_contiguous():
            pairs = of_dtype.setdefault(source.dtype, ([], []))
            pairs[0].append(target)
            pairs[1].append(source)
        else:
            target.copy_(source)
    for pairs in of_dtype.values():
        torch._foreach_copy_(*pairs)


def tensors_of(scores: Scores) -> list[Tensor]:
    """Return the tensors of scores, those that are carried on included."""
    found: list[Tensor] = []
    leaves = tree_leaves((scores.positive, scores.negative, scores.carry), is_leaf=is_dataclass)
    for leaf in leaves:
        values = (
            [getattr(leaf, each.name) for each in fields(leaf)] if is_dataclass(leaf) else [leaf]
        )
        found += [value for value in values if isinstance(value, Tensor)]
    return found
