"""Asynchronous transfer of step values to the host: at once on the CPU, delayed on a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from tgflow.base.metrics import are_finite
from tgflow.cuda.device import StreamEvent, device_of

MOST_BEHIND = 16
"""Largest delay of results, in steps."""

Label = TypeVar("Label")
Values = Mapping[Any, Tensor]


class _Copy(NamedTuple):
    """Values of a step being copied to the host, as one tensor."""

    host: Tensor
    values: Values
    done: StreamEvent


class Results(Generic[Label]):
    """Values of steps, in order.

    Args:
        device: Device of the values; None: they are on the host at once.
        together: Whether all values are `MOST_BEHIND` steps late, so that ranks have the same ones
            after the same step; otherwise they come as early as they can.
    """

    def __init__(self, device: torch.device | None, *, together: bool = False) -> None:
        self._gpu, self._together = None if device is None else device_of(device), together
        self._waiting: deque[tuple[Label, Values | _Copy]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, label: Label, values: Values, flat: Tensor | None = None) -> None:
        """Add a step's values, float of any shape, by name; they must not change from now on.

        If they are given in one tensor on the device as well (`flat`), the current stream may
        overwrite them later.
        """
        gpu = self._gpu
        if gpu is None:
            self._waiting.append((label, {name: x.cpu() for name, x in values.items()}))
            return
        if flat is None:
            flat = _flatten_dense_tensors([*values.values()])  # type: ignore[no-untyped-call]
        host = gpu.allocate_host(flat.nbytes).view(flat.dtype)
        host.copy_(flat, non_blocking=True)
        self._waiting += ((label, _Copy(host, values, gpu.record_event())),)

    def take(self, *, everything: bool = False) -> Iterator[tuple[Label, Values, bool]]:
        """Yield in order the steps whose values have reached the host, and if all are finite.

        Values that came at once were checked before, and count as finite.
        """
        while self._waiting:
            label, values = self._waiting[0]
            is_finite = True
            if isinstance(values, _Copy):
                host, likes, done = values
                is_done = done.query()
                if self._together or not is_done:
                    if not everything and len(self._waiting) <= MOST_BEHIND:
                        return
                    if not is_done:
                        done.synchronize()
                tensors = [*likes.values()]
                parts = _unflatten_dense_tensors(host, tensors)  # type: ignore[no-untyped-call]
                is_finite, values = are_finite([host]), dict(zip(likes, parts, strict=True))
                for name in likes:
                    if likes[name].dtype != host.dtype:
                        values[name] = values[name].to(likes[name].dtype)
            self._waiting.popleft()
            yield label, values, is_finite

    def clear(self) -> None:
        self._waiting.clear()
