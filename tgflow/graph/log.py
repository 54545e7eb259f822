"""The event log, the total order of events, and how much of it batches see."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from tgflow.base.describe import Span, described
from tgflow.graph import _native
from tgflow.graph.events import COLUMNS, EventBatch

_BESIDE = tuple(name for name in COLUMNS if name not in ("src", "dst", "t", "relation", "x"))
"""Columns of the log that are not in the core."""
_IN_CORE = {name: getattr(_native.LogColumn, name) for name in ("src", "dst", "t", "relation")}


@described
class EventLog:
    """Append-only columns `src`, `dst`, `t`, and the optional ones that the first batch has.

    An event's position is its `eid`. Times never decrease, except for late events that were
    merged in (`TemporalGraph.append(..., allow_late=True)`). Only the graph appends to its log;
    any number of threads may read concurrently. Edge features are stored separately, see
    `TemporalGraph.edge_x`.

    Example:
        >>> graph.log.read(1, 3).t.tolist(), graph.log.position(30)
        ([20, 30], 2)
    """

    piece: ClassVar[int] = 1 << 20
    """Events that are saved, mapped and forgotten together, 24 MiB of columns: 10 billion make
    29,000 mappings, of the 65,530 that Linux grants a process."""

    def __init__(self, native: _native.Log) -> None:
        self.native = native
        """The core's log, for other code of the core."""
        self.node_types: Callable[[Tensor], Tensor] | None = None
        """Returns the types of nodes, int64 `[N]` in [0, 65,535] of ids `[N]`, always the same:
        random negatives have the type of their event's destination. Set it before the first draw;
        None: all nodes have one type."""
        self.files: dict[int, tuple[int, int]] = {}
        """Device and inode of the files that hold events, not memory, by their first event."""
        self._beside: dict[str, _Beside] = {}
        """Columns that are not in the core, by name."""

    def __len__(self) -> int:
        """Return the position after the last event."""
        return len(self.native)

    @property
    def first(self) -> int:
        """Position of the first event that is held: earlier ones were forgotten."""
        return self.native.first

    def _facts(self) -> dict[str, object]:
        at = self.first
        first, last = self.read(at, min(at + 1, len(self))).t, self.t_last
        return {
            "num_events": len(self),
            "num_nodes": self.num_nodes,
            "t": None if last is None else Span(int(first), last),
        }

    @property
    def num_nodes(self) -> int:
        """The largest node id so far plus one, 0 for an empty log."""
        return self.native.num_nodes

    @property
    def has_relations(self) -> bool:
        """Whether its events have relations; False for an empty log."""
        return self.native.has_relation

    @property
    def t_last(self) -> int | None:
        """The latest time so far in ticks (the log's clock), None for an empty log."""
        return self.native.clock if len(self) > self.first else None

    def clock_at(self, position: int) -> int:
        """Return the latest time in ticks up to and with the event at a position."""
        return self.native.since(position)[0]

    def read(self, start: int, stop: int) -> EventBatch:
        """Return the events at `[start, stop)` as views, not copies: do not write to them.

        Raises:
            IndexError: If the range is not within the log.
        """
        self._check_range(start, stop)
        src, dst, t, relation = self.native.columns(start, stop)
        return EventBatch.checked(
            src=torch.from_numpy(src),
            dst=torch.from_numpy(dst),
            t=torch.from_numpy(t),
            relation=None if relation is None else torch.from_numpy(relation),
            **self._others(slice(start, stop)),
        )

    def _check_range(self, start: int, stop: int) -> None:
        if not self.first <= start <= stop <= len(self):
            span = f"[{self.first}, {len(self)})"
            raise IndexError(f"the log holds events {span}, got [{start}, {stop})")

    def gather(self, eid: Tensor) -> EventBatch:
        """Return copies of the events at positions `eid`, int64 `[N]`, in any order.

        Raises:
            IndexError: If a position is not in the log.
            ValueError: If `eid` has another dtype or shape.
        """
        if eid.dtype != torch.int64 or eid.dim() != 1:
            raise ValueError(f"eid must be int64 [N], got {eid.dtype} {list(eid.shape)}")
        eid = eid.contiguous()
        src, dst, t = torch.empty(3, len(eid), dtype=torch.int64).unbind(0)
        relation = torch.empty_like(eid) if self.native.has_relation else None
        self.native.gather(eid, src, dst, t, relation)
        return EventBatch.checked(src=src, dst=dst, t=t, relation=relation, **self._others(eid))

    def _others(self, eid: Tensor | slice) -> dict[str, Any]:
        return {name: column.values[eid] for name, column in self._beside.items()}

    def column(self, name: str, eid: Tensor | slice) -> Tensor | None:
        """Return an optional column at positions `eid`; None without it."""
        values = self._beside[name].values if name in self._beside else None
        if name == "relation" and self.native.has_relation:
            first = self.first
            values = torch.from_numpy(self.native.columns(first, len(self))[3])
            return (
                values[eid - first]
                if isinstance(eid, Tensor)
                else values[eid.start - first :][: eid.stop - eid.start]
            )
        return None if values is None else values[eid]

    def keep_columns(self, events: EventBatch) -> None:
        """Store the columns that are not in the core, for events that the graph appends next."""
        first, beside = len(self), dict(self._beside)
        is_new = first == self.first
        for name in _BESIDE:
            values, held = getattr(events, name), beside.get(name)
            if is_new:
                beside.pop(name, None)
                held = None if values is None else _Beside(values.dtype)
            elif len(events) and (values is None) != (held is None):
                there, here = ("none", "some") if held is None else ("some", "none")
                raise ValueError(
                    f"the log has {there} {name}s, the batch has {here}; give all or none"
                )
            if held is None or values is None:
                continue
            held.write(first, values)
            beside[name] = held
        self._beside = beside  # in one assignment: others may be reading

    def map_file(self, start: int, stop: int, descriptor: int, offsets: Mapping[str, int]) -> bool:
        """Hold the events `[start, stop)` in a file instead of memory.

        The system then keeps only the pages that are read, and may drop them at any time. The file
        must not be shortened or written to, but may be closed and deleted. Others may be reading
        and appending, and see no change.

        Args:
            start: First event; it and `stop` must be multiples of a page in each column.
            stop: The event after the last.
            descriptor: Open file with the columns.
            offsets: Byte at which each column of the events begins, by name; multiples of a page.

        Returns:
            Whether all columns are mapped. The others stay in memory: the file has other values,
            or the system does not map it.

        Raises:
            IndexError: If the range is not within the log.
        """
        self._check_range(start, stop)
        held = {**_IN_CORE, **self._beside}
        if not self.has_relations:
            del held["relation"]
        if "label" not in offsets:  # none of these is known, and the label of some later event is
            held.pop("label", None)
        if not held.keys() <= offsets.keys():
            return False
        return all(
            self.native.map_file(column, start, stop, descriptor, offsets[name])
            if isinstance(column, _native.LogColumn)
            else column.map_file(start, stop, descriptor, offsets[name])
            for name, column in held.items()
        )

    def start_of_piece(self, position: int) -> int:
        """Return the first position of the piece that an event is in."""
        return position // self.piece * self.piece

    def forget(self, first: int) -> None:
        """Free the columns that are not in the core of events before `first`."""
        for column in self._beside.values():
            column.forget(first)
        self.files = {start: file for start, file in self.files.items() if start >= first}

    def tied_share(self, stop: int) -> float:
        """Return the share of the events held before `stop` with the time of the previous one."""
        t = self.read(self.first, stop).t
        return int((t[1:] == t[:-1]).sum()) / len(t) if len(t) else 0.0

    def position(self, t: int) -> int:
        """Return the number of events in the log when its clock reached `t`: a time as a cut-off.

        Without late events these are the events strictly before `t`.
        """
        return self.native.position(t)

    def positions(self, t: Tensor) -> Tensor:
        """Return `position` of each time, int64 `[N]`, of ticks `[N]`."""
        out = torch.empty_like(t)
        self.native.positions(t, out)
        return out


class _Beside:
    """A column that is not in the core; its values stay in place while it grows."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._bytes, self._dtype = _native.GrowingBytes(dtype.itemsize), dtype
        self.values = torch.empty(0, dtype=dtype)

    def write(self, start: int, values: Tensor) -> None:
        stop = start + len(values)
        grown = torch.from_numpy(self._bytes.grow(stop * self._dtype.itemsize)).view(self._dtype)
        grown[start:] = values
        self.values = grown

    def forget(self, first: int) -> None:
        self._bytes.drop(first * self._dtype.itemsize)

    def map_file(self, start: int, stop: int, descriptor: int, offset: int) -> bool:
        size = self._dtype.itemsize
        return self._bytes.map_file(start * size, stop * size, descriptor, offset)


class NodeCount:
    """Number of nodes in a prefix of a log; for growing prefixes each event is read once.

    Args:
        log: The log.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._found = (0, 0)
        """A position, and the number of nodes of the events before it."""

    def upto(self, position: int) -> int:
        """Return the largest node id of the first `position` events plus one."""
        start, num = self._found if self._found[0] <= position else (self._log.first, 0)
        if start == position:
            return num
        events = self._log.read(start, position)
        if len(events):
            num = max(num, int(events.src.max()) + 1, int(events.dst.max()) + 1)
        self._found = (position, num)
        return num


T = TypeVar("T")


class BySince(Generic[T]):
    """What is kept of the log's events within the horizon, by its beginning; thread-safe.

    The latest few are held: batches are prepared in parallel where the horizon moves.
    """

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._held: dict[int, T] = {}

    def at(self, since: int) -> T:
        """Return what is kept of the events from a log position on."""
        found = self._held.get(since)
        if found is None:
            with self._lock:
                found = self._held.get(since)
                if found is None:
                    found = self._make(since)
                    held = self._held | {since: found}
                    self._held = {first: held[first] for first in sorted(held)[-4:]}
        return found


STEPS = 16
"""The horizon moves in steps of this part of it."""


@described
@dataclass(frozen=True, slots=True)
class Horizon:
    """What a batch may see of the past: the latest events, or those of the latest ticks, or both.

    It moves in steps of a sixteenth, as a function of the log and the batch's first position alone,
    so it is the same however a run is divided, resumed or prepared ahead.

    Args:
        events: Latest events that are seen: at least these, at most a sixteenth more. None: all.
        ticks: Likewise, the latest ticks.

    Raises:
        ValueError: If a number is less than 16, so has no sixteenth.

    Example:
        >>> tg.graph.Horizon(events=32).begin(graph.log, 3)
        0
    """

    events: int | None = None
    ticks: int | None = None

    def __post_init__(self) -> None:
        for name, number in (("events", self.events), ("ticks", self.ticks)):
            if number is not None and number < STEPS:
                raise ValueError(f"a horizon needs at least {STEPS} {name}, got {number}")

    def begin(self, log: EventLog, position: int) -> int:
        """Return the first log position that a batch which begins at `position` sees."""
        first = 0
        if self.events is not None:
            step = self.events // STEPS
            first = max(first, (position - self.events) // step * step)
        if self.ticks is not None and position > 0:
            step, t = self.ticks // STEPS, log.clock_at(position - 1)
            first = max(first, min(position, log.position(t // step * step - self.ticks)))
        return first
