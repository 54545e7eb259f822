"""Captures training steps as CUDA graphs and replays them by input shape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import chain, starmap, zip_longest
from operator import is_
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tgflow.cuda.device import CapturedWork, Device
from tgflow.graph.batch import Batch, LentTensors
from tgflow.nn.model import Scores

WARM_UPS = 3
"""Eager calls with a shape before it is captured: it recurs, and everything is compiled. Not of a
batch of full size, in memory that is reused: its shape is captured at once."""
MOST_SHAPES = 64
"""Most captured shapes; others run eagerly, until one of these was not used for long."""
LONG = 512
"""Calls without use after which a shape may be replaced."""

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Shape:
    """Captured calls for batches of one shape. One may read another's result."""

    inputs: Batch
    tensors: list[Tensor]
    """Those of `inputs`."""
    state: list[dict[str, Any]]
    """Tensors and modules of the model's state, by name."""
    fixed: list[Any]
    """Those at capture: a replay reads and writes these."""
    holds: Batch | None = None
    """The batch whose values are in `inputs`."""
    calls: dict[str, tuple[Any, CapturedWork]] = field(default_factory=dict)
    last_used: int = 0
    copies: WeakKeyDictionary[LentTensors, list[tuple[list[Tensor], list[Tensor]]]] = field(
        default_factory=WeakKeyDictionary
    )
    """Targets and sources of copies from tensors that other batches had before."""

    def copy(self, sources: list[Tensor], lent: LentTensors | None) -> None:
        """Copy tensors to `tensors`, all of a dtype at once where they are contiguous."""
        known = None if lent is None or lent.tensors is not sources else lent
        copies = None if known is None else self.copies.get(known)
        if copies is None:
            copies = self._copies_from(sources)
            if known is not None:
                self.copies[known] = copies
        for targets, group in copies:
            torch._foreach_copy_(targets, group)

    def _copies_from(self, sources: Sequence[Tensor]) -> list[tuple[list[Tensor], list[Tensor]]]:
        by_kind = defaultdict[Any, tuple[list[Tensor], list[Tensor]]](lambda: ([], []))
        for place, (target, source) in enumerate(zip(self.tensors, sources, strict=True)):
            targets, group = by_kind[source.dtype if source.is_contiguous() else place]
            targets.append(target)
            group.append(source)
        return [*by_kind.values()]


class CapturedCalls:
    """Captures functions of batches as CUDA graphs and replays them where shapes recur.

    A replay runs the captured kernels on the current values of the batch's tensors; everything else
    that changes from batch to batch must be in device memory. A replay therefore uses the modules
    and parameters of the capture, even if they were replaced since; only a replaced tensor or
    module of `state` is detected.

    All graphs share one memory pool, sized by the largest one, as they run one after the other. A
    result is valid until the next call, except that a call with the same batch that was captured
    later may read it.

    Args:
        device: The device.
        state: The model's state, whose tensors captured work reads and writes; None: there is none.
        prepare: Called before each call, replayed or not: what may replace tensors of `state`.
        around: Context of work that runs or is captured; a replay needs none.
        idle: Context in which work changes nothing but its results.
    """

    def __init__(
        self,
        device: Device,
        state: nn.Module | None,
        prepare: Callable[[], None] = lambda: None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        idle: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._device, self._state, self._prepare = device, state, prepare
        self._around, self._idle = around, idle
        self._pool = device.open_pool()
        self._seen: Counter[Any] = Counter()
        self._shapes: dict[Any, _Shape] = {}
        self._num_calls = 0
        self._replayed: _Shape | None = None
        self._latest: tuple[Batch, list[Tensor], Any] | None = None
        """The latest batch, its tensors, and its shape."""

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
        latest, self._replayed = self._replayed, None
        self._num_calls += 1
        self._prepare()
        given, key = self._shape_of(batch)
        shape = self._found(key)
        if follows and shape is not latest:
            shape = None
        elif not follows and (shape is None or name not in shape.calls):
            self._seen[name, key] += 1
            is_new = batch.lent is None and self._seen[name, key] <= WARM_UPS
            shape = None if is_new else shape or self._with_room(key, batch)
        if shape is None:
            with self._around():
                return work(batch)
        if shape.holds is not batch:
            shape.copy(given, batch.lent)
            shape.holds = batch
        if name not in shape.calls:
            is_first = batch.lent is not None
            shape.calls[name] = self._capture(shape, work, tensors, is_first=is_first)
        shape.last_used = self._num_calls
        result: Result
        result, replayed = shape.calls[name]
        replayed.replay()
        self._replayed = shape
        return result

    def _shape_of(self, batch: Batch) -> tuple[list[Tensor], Any]:
        """Return a batch's tensors, and all else that captured work on it depends on."""
        if self._latest is None or self._latest[0] is not batch:
            tensors, lent = batch.tensors(), batch.lent
            if lent is not None and lent.tensors is tensors:
                shapes = lent.shapes
            else:
                shapes = tuple([tensor.shape for tensor in tensors])
            key = batch.num_new, batch.seconds_per_tick, len(batch.blocks), shapes
            self._latest = batch, tensors, key
        return self._latest[1:]

    def _found(self, key: Any) -> _Shape | None:
        """Return the captured calls of a shape, unless the state has since grown and moved.

        Then those of all shapes are dropped, which would keep the tensors that it has left.
        """
        shape = self._shapes.get(key)
        if shape is None:
            return None
        now = chain.from_iterable(map(dict.values, shape.state))
        if all(starmap(is_, zip_longest(now, shape.fixed))):
            return shape
        self._shapes.clear()
        return None

    def _with_room(self, key: Any, batch: Batch) -> _Shape | None:
        """Return a slot for another shape; None if all are in use."""
        if len(self._shapes) >= MOST_SHAPES:
            oldest = min(self._shapes, key=lambda known: self._shapes[known].last_used)
            if self._num_calls - self._shapes[oldest].last_used < LONG:
                return None
            del self._shapes[oldest]
        inputs = batch.map(torch.clone)
        modules = () if self._state is None else self._state.modules()
        state = [held for each in modules for held in (each._buffers, each._modules)]
        fixed = [each for held in state for each in held.values()]
        shape = _Shape(inputs, inputs.tensors(), state, fixed, batch)
        self._shapes[key] = shape
        return shape

    def _capture(
        self,
        shape: _Shape,
        work: Callable[[Batch], Result],
        tensors: Callable[[Result], Sequence[Tensor]],
        *,
        is_first: bool,
    ) -> tuple[Any, CapturedWork]:
        results: list[Result] = []

        def run() -> Sequence[Tensor]:
            with self._around():
                results.append(work(shape.inputs))
            return tensors(results[-1])

        if is_first:
            with self._idle():  # compiles kernels, and allocates what stays
                run()
            results.clear()
        replayed = self._device.capture(run, self._pool)
        return results[0], replayed


def tensors_of(scores: Scores) -> list[Tensor]:
    """Return the tensors of scores, including those carried on."""
    found: list[Tensor] = []
    leaves = tree_leaves((scores.positive, scores.negative, scores.carry), is_leaf=is_dataclass)
    for leaf in leaves:
        values = (
            [getattr(leaf, each.name) for each in fields(leaf)] if is_dataclass(leaf) else [leaf]
        )
        found += [value for value in values if isinstance(value, Tensor)]
    return found


def cloned(value: Any) -> Any:
    """Return a value whose tensors, in tuples and dataclasses too, no replay overwrites."""
    if isinstance(value, Tensor):
        return value.clone()
    if is_dataclass(value) and not isinstance(value, type):
        named = {each.name: cloned(getattr(value, each.name)) for each in fields(value)}
        return replace(value, **named)
    if isinstance(value, tuple):
        items = map(cloned, value)
        return value._make(items) if hasattr(value, "_make") else tuple(items)
    return value


def result_tensors(result: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors of a result: scores, and others."""
    return [*tensors_of(result[0]), *(x for x in result[1:] if isinstance(x, Tensor))]


def without_carry(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a result which no replay overwrites, except for the scores' `carry`."""
    scores, *others = result
    kept = scores._replace(positive=scores.positive.clone(), negative=scores.negative.clone())
    return kept, *map(cloned, others)


def is_capturable(batch: Batch, *, learns: bool) -> bool:
    """Return whether a replay has rows, and no column of the host to copy to the device."""
    host = batch.host
    if not len(batch.eid) or host.relation is not None:
        return False
    is_masked = host.negative_mask is not None and batch.log_q is None
    return not learns or (host.weight is None and not is_masked)
