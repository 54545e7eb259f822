"""Captures training steps as CUDA graphs and replays them on memory that recurs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain, starmap, zip_longest
from operator import attrgetter, is_
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tgflow.cuda.device import CapturedWork, Device
from tgflow.graph.batch import Batch, Targets

WARM_UPS = 3
"""Eager calls with a shape before it is captured: it recurs, and everything is compiled. Not of
batches in memory that is reused: work on it is captured at once."""
MOST_GRAPHS = 256
"""Most captured graphs; other calls are eager, until one of these was not used for long."""
LONG = 512
"""Calls without use after which a graph may be replaced."""

Result = TypeVar("Result")
_shape_of = attrgetter("shape")


@dataclass(slots=True, eq=False)
class _Graph:
    """Captured work on batches."""

    result: Any
    work: CapturedWork
    inputs: list[Tensor]
    """Tensors to copy those of a batch to; none if the work reads the batches where they are."""
    last_used: int = 0

    def copy(self, tensors: list[Tensor]) -> None:
        """Copy tensors to `inputs`, all of a dtype at once where they are contiguous."""
        by_kind = defaultdict[Any, tuple[list[Tensor], list[Tensor]]](lambda: ([], []))
        for place, (target, source) in enumerate(zip(self.inputs, tensors, strict=True)):
            targets, group = by_kind[source.dtype if source.is_contiguous() else place]
            targets.append(target)
            group.append(source)
        for targets, group in by_kind.values():
            torch._foreach_copy_(targets, group)


class CapturedCalls:
    """Captures functions of batches as CUDA graphs, and replays them.

    A replay runs the captured kernels on the current values of the batches' tensors: in a loader's
    memory, which recurs, or else copied to those of the capture, for each shape, as are the labels
    of a task. Everything else
    that changes from batch to batch must be in device memory. A replay therefore uses the modules
    and parameters of the capture, even if they were replaced since; only a replaced tensor or
    module of `state` is detected.

    All graphs share one memory pool, sized by the largest one, as they run one after the other. A
    result is valid until the next call.

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
        self._graphs: dict[Any, _Graph] = {}
        self._held: list[dict[str, Any]] = []
        """Tensors and modules of the model's state, by name."""
        self._fixed: list[Any] = []
        """Those at capture: a replay reads and writes these."""
        self._num_calls = 0
        self.was_replay = False

    def call(
        self,
        name: str,
        batches: Sequence[Batch],
        memory: Sequence[int | None],
        work: Callable[..., Result],
        tensors: Callable[[Result], Sequence[Tensor]],
    ) -> Result:
        """Return `work(*batches)`, or the same from a replay; the next one overwrites its tensors.

        Does not synchronize, except while it captures.

        Args:
            name: Of the work.
            batches: All in a loader's memory, or one of any.
            memory: `memory` of each.
            work: Function of the model and the batches.
            tensors: Returns those of a result.
        """
        self._num_calls += 1
        self._prepare()
        self._check_state()
        is_lent, facts, given = None not in memory, list[Any]([name, *memory]), list[Tensor]()
        for each in batches:
            if each.targets is not None:
                given += _leaves(each.targets)
        if not is_lent:
            [batch] = batches
            given = batch.tensors() + given
            facts = [name, batch.num_new, batch.seconds_per_tick, len(batch.blocks)]
        key = *facts, *map(_shape_of, given)
        if key not in self._graphs:
            self._seen[key] += not is_lent
            if 0 < self._seen[key] <= WARM_UPS or not self._has_room():
                self.was_replay = False
                with self._around():
                    return work(*batches)
            self._graphs[key] = self._captured(name, batches, work, tensors, is_lent)
        graph = self._graphs[key]
        if given:
            graph.copy(given)
        graph.last_used = self._num_calls
        graph.work.replay()
        self.was_replay = True
        result: Result = graph.result
        return result

    def _check_state(self) -> None:
        """Drop all graphs if the state has grown and moved: they keep tensors that it has left."""
        now = chain(*map(dict.values, self._held))
        if self._state is not None and False in starmap(is_, zip_longest(now, self._fixed)):
            self._graphs.clear()
            self._seen.clear()

    def _has_room(self) -> bool:
        """Return whether there may be another graph, which may take the place of an old one."""
        if len(self._graphs) >= MOST_GRAPHS:
            oldest = min(self._graphs, key=lambda key: self._graphs[key].last_used)
            if self._num_calls - self._graphs[oldest].last_used < LONG:
                return False
            del self._graphs[oldest]
        return True

    def _captured(
        self,
        name: str,
        batches: Sequence[Batch],
        work: Callable[..., Result],
        tensors: Callable[[Result], Sequence[Tensor]],
        is_lent: bool,
    ) -> _Graph:
        if not self._graphs and self._state is not None:
            modules = [*self._state.modules()]
            self._held = [held for each in modules for held in (each._buffers, each._modules)]
            self._fixed = [each for held in self._held for each in held.values()]
        if not is_lent:
            batches = [each.map(torch.clone) for each in batches]
        inputs = [x for each in batches if not is_lent for x in each.tensors()]
        batches = [
            each if each.targets is None else replace(each, targets=cloned(each.targets))
            for each in batches
        ]
        inputs += [x for each in batches if each.targets is not None for x in _leaves(each.targets)]
        results: list[Result] = []

        def run() -> Sequence[Tensor]:
            with self._around():
                results.append(work(*batches))
            return tensors(results[-1])

        shapes = name, *(x.shape for each in batches for x in each.tensors())
        if is_lent and not self._seen[shapes]:
            with self._idle():  # compiles kernels, and allocates what stays
                run()
            results.clear()
        self._seen[shapes] += 1
        replayed = self._device.capture(run, self._pool)
        return _Graph(results[0], replayed, inputs)


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
    """Return the tensors of a result: scores, including those carried on, and others."""
    found: list[Tensor] = []
    for leaf in tree_leaves(tuple(result[0]), is_leaf=is_dataclass):
        values = [getattr(leaf, x.name) for x in fields(leaf)] if is_dataclass(leaf) else [leaf]
        found += [value for value in values if isinstance(value, Tensor)]
    return found + [x for x in result[1:] if isinstance(x, Tensor)]


def without_carry(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a result which no replay overwrites, except for the scores' `carry`."""
    scores, *others = result
    return cloned(scores._replace(carry=None))._replace(carry=scores.carry), *map(cloned, others)


def _leaves(targets: Targets) -> list[Tensor]:
    """Return the tensors of labels on the device."""
    on_device = targets._replace(host_past=None)
    return [leaf for leaf in tree_leaves(on_device) if leaf is not None]


def is_capturable(batch: Batch, *, learns: bool) -> bool:
    """Return whether a replay has rows, and no mask of the host to copy to the device."""
    is_masked = learns and batch.host.negative_mask is not None and batch.log_q is None
    return batch.eid.shape[0] > 0 and not is_masked
