"""Recorded changes of a graph's past; with its log they suffice to rebuild the graph."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Kind = Literal["append_late", "delete", "delete_pair", "delete_node", "retain", "compact"]

_KEPT_CYCLES = 2


@dataclass(frozen=True, slots=True, eq=False)
class Mutation:
    """A change of the past: kind, arguments and position."""

    position: int
    """Length of the log; for late events, before they were inserted."""
    kind: Kind
    """The method of `TemporalGraph`; late events came by `append`."""
    arguments: dict[str, int]
    """Its arguments; for late events their number (`size`)."""
    eid: Tensor | None = None
    """The events to delete, int64 `[N]`."""

    @property
    def stop(self) -> int:
        """The first cut-off that sees the change."""
        return self.position + (self.arguments["size"] if self.kind == "append_late" else 0)


class Changes:
    """The changes of a graph's past, recorded under the graph's lock."""

    def __init__(self) -> None:
        self.noted: list[Mutation] = []
        """In order; `note` describes which are omitted."""
        self._is_making = False

    @contextmanager
    def making(self) -> Iterator[None]:
        """Enclose a change, from before it is visible until it is recorded."""
        self._is_making = True
        try:
            yield
        finally:
            self._is_making = False

    def note(self, change: Mutation) -> None:
        """Record a change; drop the oldest of the last three equal cycles of retain and compact.

        Two are kept, for a checkpoint at a position a little before the last.
        """
        self.noted.append(change)
        size = 2 * (_KEPT_CYCLES + 1)
        last = self.noted[-size:]
        kinds = [mutation.kind for mutation in last]
        if kinds != ["retain", "compact"] * (_KEPT_CYCLES + 1):
            return
        if all(mutation.arguments == last[0].arguments for mutation in last[::2]):
            del self.noted[-size : 2 - size]

    def forget(self, first: int) -> None:
        """Drop the changes before a log position, but for the latest change."""
        self.noted[:-1] = [each for each in self.noted[:-1] if each.position > first]

    def last(self, lock: threading.Lock) -> Mutation | None:
        """Return the latest change, None without any; waits for one in progress."""
        if self._is_making:
            with lock:
                pass
        return self.noted[-1] if self.noted else None


def to_tensors(mutations: Iterable[Mutation]) -> tuple[list[list[Any]], dict[str, Tensor]]:
    """Return mutations for a checkpoint: JSON-serializable rows, and the deleted events."""
    rows = []
    tensors = {}
    for number, mutation in enumerate(mutations):
        rows.append([mutation.position, mutation.kind, mutation.arguments])
        if mutation.eid is not None:
            tensors[str(number)] = mutation.eid
    return rows, tensors


def from_tensors(rows: list[list[Any]], tensors: dict[str, Tensor]) -> list[Mutation]:
    """Return the mutations from the result of `to_tensors`."""
    mutations = []
    for number, (position, kind, arguments) in enumerate(rows):
        eid = tensors.get(str(number))
        if kind not in get_args(Kind) or (kind == "delete") != (eid is not None):
            raise ValueError(f"{kind!r} at position {position} is not a mutation that can be made")
        if eid is not None and eid.dtype is not torch.int64:
            raise ValueError(
                f"the events deleted at position {position} are {eid.dtype}, not int64"
            )
        mutations.append(Mutation(position, kind, arguments, eid))
    return mutations
