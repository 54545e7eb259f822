"""What steps leave for the host: at once on the CPU, a few steps behind on a device."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

MOST_BEHIND = 16
"""Steps by which results are behind at most."""
FETCH_EVERY = MOST_BEHIND // 2
"""Steps whose results come to the host in one copy."""
SLOTS = 4 * FETCH_EVERY
"""Steps that a ring holds: those behind, and those being copied."""

Label = TypeVar("Label")
Values = Mapping[str, Tensor]


class Results(Protocol[Label]):
    """Values of steps, on their way to the host."""

    def put(self, label: Label, values: Values) -> None:
        """Take a step's values, float of any shape, by name; nobody changes them from now on."""

    def take(self, *, everything: bool = False) -> Iterator[tuple[Label, Values]]:
        """Yield in order the steps whose values have come to the host.

        Args:
            everything: Wait for all of them.
        """

    def clear(self) -> None:
        """Forget the steps that were not taken."""

    def __len__(self) -> int:
        """How many steps were put and not taken."""


class ReadyResults(Generic[Label]):
    """Values that are on the host when they are put, or are waited for then."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Label, Values]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, label: Label, values: Values) -> None:
        """Take a step's values. Synchronizes with the device of values that are on one."""
        self._waiting.append((label, {name: x.cpu() for name, x in values.items()}))

    def take(self, *, everything: bool = False) -> Iterator[tuple[Label, Values]]:
        """Yield all steps."""
        while self._waiting:
            yield self._waiting.popleft()

    def clear(self) -> None:
        """Forget the steps that were not taken."""
        self._waiting.clear()


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Label]):
    label: Label
    number: int
    likes: dict[str, tuple[torch.Size, torch.dtype]]


class ResultRing(Generic[Label]):
    """Values of the latest steps in a ring on a device, copied to pinned memory group by group.

    A copy runs behind the step that ends its group. `take` waits for one only where the host would
    be more than `MOST_BEHIND` steps ahead of what it knows.

    Args:
        device: Where values come from.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ring = torch.empty(SLOTS, 0, device=device)
        self._host = torch.empty(SLOTS, 0)
        self._waiting: deque[_Waiting[Label]] = deque()
        self._count = self._fetched = self._arrived = 0
        self._copies: deque[tuple[int, torch.cuda.Event | None]] = deque()
        """Up to which step each copy goes, and when it is done; None: it is."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, label: Label, values: Values) -> None:
        """Take a step's values; does not synchronize, unless they are more than any step's so far,
        or the first ones in float64.

        Raises:
            RuntimeError: If more than `MOST_BEHIND` steps wait to be taken.
        """
        if len(self._waiting) > MOST_BEHIND:
            raise RuntimeError(f"{len(self._waiting)} steps wait in a ring; take them first")
        flat = torch.cat([x.detach().flatten() for x in values.values()])
        dtype = torch.promote_types(flat.dtype, self._ring.dtype)
        if len(flat) > self._ring.shape[1] or dtype != self._ring.dtype:
            self._widen(max(len(flat), self._ring.shape[1]), dtype)
        self._ring[self._count % SLOTS, : len(flat)].copy_(flat)
        likes = {name: (x.shape, x.dtype) for name, x in values.items()}
        self._waiting.append(_Waiting(label, self._count, likes))
        self._count += 1
        if self._count % FETCH_EVERY == 0:
            self._fetch()

    def take(self, *, everything: bool = False) -> Iterator[tuple[Label, Values]]:
        """Yield in order the steps whose values have come to the host."""
        if everything:
            self._fetch()
        while self._waiting and self._has_come(everything=everything):
            waiting = self._waiting.popleft()
            yield waiting.label, self._values(waiting)

    def clear(self) -> None:
        """Forget the steps that were not taken; waits for copies on their way."""
        self._fetch()
        while self._copies:
            self._settle()
        self._waiting.clear()

    def _has_come(self, *, everything: bool) -> bool:
        """Return whether the oldest step's values are here; waits where they must be."""
        oldest = self._waiting[0].number
        must = everything or len(self._waiting) > MOST_BEHIND
        while self._copies and self._arrived <= oldest:
            done = self._copies[0][1]
            if done is not None and not must and not done.query():  # type: ignore[no-untyped-call]
                break
            self._settle()
        return oldest < self._arrived

    def _settle(self) -> None:
        """Wait for the oldest copy."""
        self._arrived, done = self._copies.popleft()
        if done is not None:
            done.synchronize()

    def _values(self, waiting: _Waiting[Label]) -> Values:
        row = self._host[waiting.number % SLOTS]
        sizes = [math.prod(shape) for shape, _ in waiting.likes.values()]
        parts = torch.split(row[: sum(sizes)].clone(), sizes)
        pairs = zip(waiting.likes.items(), parts, strict=True)
        return {name: part.to(dtype).view(shape) for (name, (shape, dtype)), part in pairs}

    def _fetch(self) -> None:
        """Copy the steps since the last copy to the host, behind the work that is queued."""
        if self._fetched == self._count:
            return
        begin, end = self._fetched % SLOTS, (self._count - 1) % SLOTS + 1
        spans = [(begin, end)] if begin < end else [(begin, SLOTS), (0, end)]
        for start, stop in spans:
            self._host[start:stop].copy_(self._ring[start:stop], non_blocking=True)
        done = None
        if self._device.type == "cuda":
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(torch.cuda.current_stream(self._device))
        self._copies.append((self._count, done))
        self._fetched = self._count

    def _widen(self, width: int, dtype: torch.dtype) -> None:
        """Make room for steps of more or wider values, once those before are on the host."""
        self._fetch()
        while self._copies:
            self._settle()
        old = self._host
        self._ring = torch.empty(SLOTS, width, dtype=dtype, device=self._device)
        self._host = _host_memory(width, dtype, self._device)
        self._host[:, : old.shape[1]] = old


def _host_memory(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a row for each slot in host memory that a device copies to by itself."""
    return torch.empty(SLOTS, width, dtype=dtype, pin_memory=device.type == "cuda")
