"""The event log, the labels that came after their events, and how much of it batches see."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from weakref import WeakSet, proxy

import numpy as np
import torch
from torch import Tensor

from tgflow.base.describe import Span, described
from tgflow.base.units import INT64_MAX
from tgflow.graph import _native
from tgflow.graph.events import COLUMNS, NO_EVENT, EventBatch, LateLabels

_BESIDE = tuple(name for name in COLUMNS if name not in ("src", "dst", "t", "relation", "x"))
"""Columns of the log that are not in the core."""
_IN_CORE = {name: getattr(_native.LogColumn, name) for name in ("src", "dst", "t", "relation")}

LATE_COLUMNS = ("eid", "label", "t", "written_at")
"""Columns of the entries in a checkpoint, int64, in the order in which they were added."""


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

    def __init__(self, native: _native.EventLog) -> None:
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
        self._held = WeakSet[HeldLog]()
        self.horizon: Horizon | None = None
        """How much of the past batches see; None: all."""
        self.read_again = INT64_MAX
        """Position that a stream resumes at, if before the events that were learned: checkpoints
        have what is within the horizon as of there."""
        log = proxy(self)  # a cycle would keep the memory of a log that is dropped
        self.late = LateEntries(native, lambda position: log.since(position), lambda: log.piece)  # noqa: PLW0108
        """Labels that came after their events."""
        self.before = native.first, 0
        """A position up to which events may be forgotten, and the largest node id of the events
        before it plus one."""

    def __len__(self) -> int:
        """Return the position after the last event."""
        return len(self.native)

    @property
    def first(self) -> int:
        """Position of the first event that is held: earlier ones were forgotten."""
        return self.native.first

    @property
    def nbytes(self) -> int:
        """Bytes of the columns in memory, without those of pieces that files hold."""
        widths = [each.values.itemsize for each in self._beside.values()]
        held = len(self) - self.first - len(self.files) * self.piece
        return (24 + 8 * self.has_relations + sum(widths)) * max(held, 0)

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
        num, before = self.native.num_nodes, self.before[1]
        return num if num > before else before

    @property
    def has_relations(self) -> bool:
        """Whether its events have relations; False for an empty log."""
        return self.native.has_relation

    @property
    def t_last(self) -> int | None:
        """The latest time so far in ticks (the log's clock), None for an empty log."""
        return self.native.clock if len(self.native) > self.native.first else None

    @property
    def has_further(self) -> bool:
        """Whether its events have columns besides `src`, `dst` and `t`."""
        return self.native.has_relation or bool(self._beside)

    def clock_at(self, position: int) -> int:
        """Return the latest time in ticks up to and with the event at a position."""
        t: int = self.native.since(position)[0]
        return t

    def since(self, position: int) -> int:
        """Return the first log position that a batch which begins at `position` sees."""
        return 0 if self.horizon is None else self.horizon.begin(self, position)

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
                held = None if values is None else _Beside(self.native, values.dtype)
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

    def find(self, src: Tensor, dst: Tensor, t: Tensor) -> Tensor:
        """Return the position of the event of each pair at a time, int64 `[N]`.

        `NO_EVENT` without one, and `NO_EVENT - 1` with several.
        """
        found = torch.full_like(t, NO_EVENT)
        starts, stops = self.positions(t).tolist(), self.positions(t + 1).tolist()
        for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            events = self.read(start, stop)
            own = ((events.src == src[row]) & (events.dst == dst[row])).nonzero().flatten()
            if len(own):
                found[row] = start + own[0] if len(own) == 1 else NO_EVENT - 1
        return found

    def add_labels(self, late: LateLabels) -> Added:
        """Write late labels of a stream at the log's end, as `LateEntries.add`."""
        return self.late.add(late)

    def map_file(self, start: int, stop: int, descriptor: int, offsets: Mapping[str, int]) -> bool:
        """Hold the events `[start, stop)` in an open file instead of memory.

        The system then keeps only the pages that are read, and may drop them at any time. The file
        must not be shortened or written to, but may be closed and deleted. Others may be reading
        and appending, and see no change. Ends of the range are multiples of a page in each column,
        and so is the byte at which each column of the events begins, `offsets`.

        Returns:
            Whether all columns are mapped. The others stay in memory: the file has other values,
            or the system does not map it.
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

    def hold(self, first: int) -> HeldLog:
        """Keep the events from a position on while the result lives."""
        held = HeldLog(self, first)
        self._held.add(held)
        return held

    def start_of_piece(self, position: int) -> int:
        """Return the first position of the piece that an event is in."""
        return position // self.piece * self.piece

    def forgettable(self, first: int) -> int:
        """Return the position before which events may be forgotten, and count their nodes.

        So that pieces stay whole, and events that are held.
        """
        first = min([self.start_of_piece(first), *(held.first for held in self._held)])
        if first > self.before[0]:
            self.before = first, NodeCount(self).upto(first)
        return first

    def forget(self, first: int) -> None:
        """Free the columns that are not in the core of events before `first`."""
        for column in self._beside.values():
            column.forget(first)
        self.files = {start: file for start, file in self.files.items() if start >= first}

    def tied_share(self, stop: int) -> float:
        """Return the share of the events before `stop` with the time of the previous one.

        Of those that a batch which begins there sees.
        """
        t = self.read(self.since(stop), stop).t
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


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class HeldLog:
    """A log whose events from a position on are kept, as for a checkpoint in progress."""

    log: EventLog
    first: int


class _Beside:
    """A column that is not in the core; its values stay in place while it grows."""

    def __init__(self, log: _native.EventLog, dtype: torch.dtype) -> None:
        self._bytes, self._dtype = _native.GrowingBytes(log, dtype.itemsize), dtype
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


class Added(NamedTuple):
    """Numbers of labels by what adding them did."""

    added: int
    """First labels of their events."""
    corrected: int
    """Those that replace another late label."""
    repeated: int
    """Those equal to the latest late label of their event, which are ignored."""
    outside: int = 0
    """Those of events before the horizon, which are ignored."""


class KnownLabels(NamedTuple):
    """Late labels in the order in which they became known: columns int64 `[N]`."""

    eid: Tensor
    label: Tensor
    t: Tensor
    known_at: Tensor
    """First log position that they may be seen from."""
    before: Tensor
    """Places of those that they correct; -1: none."""


class Rows:
    """Columns of rows by number, which are added at one end and dropped at the other.

    Rows that were never written are zero. One thread writes; others may read rows that are held.
    """

    def __init__(self, num_columns: int, dtype: torch.dtype = torch.int64) -> None:
        self._held = torch.zeros(num_columns, 0, dtype=dtype), 0
        """Columns, and the row that is their first one: replaced at once, for other readers."""
        self.first = self.stop = 0
        """The rows that are held."""

    def grow(self, stop: int) -> None:
        """Add rows up to one, unless there are as many."""
        columns, base = self._held
        if stop - base > columns.shape[1]:
            self._move(max(stop - self.first, 2 * (self.stop - self.first)))
        self.stop = max(self.stop, stop)

    def add(self, *columns: Tensor | int) -> None:
        """Add the next rows."""
        start = self.stop
        self.grow(start + max(len(x) for x in columns if isinstance(x, Tensor)))
        for own, values in zip(self.view(start, self.stop), columns, strict=True):
            own[:] = values

    def drop(self, first: int) -> None:
        """Drop the rows before one; later rows follow, even if there are none yet."""
        self.first = max(self.first, first)
        self.stop = max(self.stop, self.first)
        columns, base = self._held
        if 2 * (self.first - base) > columns.shape[1]:
            self._move(self.stop - self.first)

    def _move(self, capacity: int) -> None:
        columns, base = self._held
        own = columns[:, self.first - base : self.stop - base]
        moved = columns.new_zeros(len(columns), capacity)
        moved[:, : own.shape[1]] = own
        self._held = moved, self.first

    def view(self, start: int, stop: int) -> Tensor:
        """Return rows `[start, stop)`, `[C, N]`."""
        return self.reader()(start, stop)

    def reader(self) -> Callable[[int, int], Tensor]:
        """Return `view` of the rows so far, for other threads, whatever is dropped."""
        columns, base = self._held
        return lambda start, stop: columns[:, start - base : stop - base]

    @property
    def all(self) -> Tensor:
        """The rows that are held, `[C, N]`."""
        return self.view(self.first, self.stop)

    def at(self, rows: Tensor) -> Tensor:
        """Return rows `[C, N]` of numbers `[N]`: of those that are not held, any other."""
        columns, base = self._held
        if not columns.shape[1]:
            return columns.new_zeros(len(columns), len(rows))
        return columns[:, (rows - base).clamp(0, columns.shape[1] - 1)]

    def has(self, rows: Tensor) -> Tensor:
        """Return which rows are held, bool `[N]`."""
        return (rows >= self.first) & (rows < self.stop)

    def set(self, column: int, rows: Tensor, values: Tensor) -> None:
        """Write rows that are held."""
        columns, base = self._held
        columns[column, rows - base] = values.to(columns.dtype)


class KeptEntries(NamedTuple):
    """What a checkpoint has of late labels besides their columns."""

    first: int
    """The first entry that batches from there on need."""
    place: int
    """The first place that they need."""
    never: Tensor
    """Numbers of later entries that are never seen, int64 `[N]`."""


class LateEntries:
    """The late labels of a log.

    An entry is written at the log's end. It may be seen from position `known_at` on: the first that
    is later than the entry's time, but not before the one it was written at; until there is such an
    event, it is not known yet. An event's label as seen from a position is that of its entry with
    the greatest (`known_at`, time, order of writing) among those known there. So it is a function
    of the log and its entries, and events before `written_at`, prepared ahead, do not depend on it.

    With a horizon an entry whose event is before it where the entry is written is refused, and one
    whose event is before it at `known_at` is never seen. Both are a function of the log as well.

    Takes some 70 bytes an entry and 16 bytes an event, the latter from the first entry on, of those
    within the horizon. Any number of threads may read and add.

    `since` returns the beginning of the horizon as of a position, and `piece` the number of entries
    that checkpoints keep together.
    """

    def __init__(
        self, log: _native.EventLog, since: Callable[[int], int], piece: Callable[[], int]
    ) -> None:
        self._log, self._since, self._piece = log, since, piece
        self._lock = threading.Lock()
        self._written = Rows(len(LATE_COLUMNS))
        """`LATE_COLUMNS` of the entries, by number."""
        self._known = Rows(4)
        """Of the known ones, in order: `known_at`, number of the entry, event, place of the one
        before it of the same event."""
        self._of_event = Rows(2)
        """By event: 1 + the place of its last known entry; 1 + the number of its last entry."""
        self._waiting = torch.empty(0, dtype=torch.int64)
        """Numbers of the entries that are not known yet, by time."""
        self._never = torch.empty(0, dtype=torch.int64)
        """Numbers of the entries that are never seen."""
        self._outside = deque[tuple[int, int]]()
        """Positions at which entries were refused, and how many."""
        self._kept = 0
        """Entries that were not in a stream, with those before."""

    def __len__(self) -> int:
        return self._written.stop

    @property
    def first(self) -> int:
        """The first entry that is held."""
        return self._written.first

    @property
    def first_place(self) -> int:
        """The first place that is held."""
        return self._known.first

    def add(self, late: LateLabels, *, in_stream: bool = True) -> Added:
        """Write entries at the log's end; IndexError if an event is not in it: nothing is added.

        With `in_stream` a stream yields them again after a resume from a checkpoint of the log up
        to its end; otherwise that checkpoint holds them.
        """
        with self._lock:
            size, num = len(self._log), len(late)
            if num and not 0 <= int(late.eid.min()) <= int(late.eid.max()) < size:
                wrong = late.eid[(late.eid < 0) | (late.eid >= size)]
                raise IndexError(f"a label is of event {int(wrong[0])}; the log has {size} events")
            is_inside = late.eid >= self._since(size)
            if outside := num - int(is_inside.sum()):
                self._outside.append((size, outside))
                late = LateLabels(*(x[is_inside] for x in (late.eid, late.label, late.t)))
            if len(late):
                self._of_event.grow(int(late.eid.max()) + 1)
            order = late.eid.argsort(stable=True)
            eid, label = late.eid[order], late.label[order]
            before = self._of_event.at(eid)[1] - 1  # the latest of each event
            same = torch.zeros(len(late), dtype=torch.bool)
            same[1:] = eid[1:] == eid[:-1]
            is_first = (before < 0) & ~same
            latest = self._written.at(before)[1]
            latest[1:] = torch.where(same[1:], label[:-1], latest[1:])
            is_repeated = ~is_first & (latest == label)
            rows = order[~is_repeated].sort().values
            self._write(late.eid[rows], late.label[rows], late.t[rows], size)
            if not in_stream:
                self._kept = len(self)
            added, repeated = int(is_first.sum()), int(is_repeated.sum())
            return Added(added, len(late) - added - repeated, repeated, outside)

    def _write(self, eid: Tensor, label: Tensor, t: Tensor, at: int | Tensor) -> Tensor:
        """Add entries, and return the numbers of those that may be seen."""
        numbers = len(self) + torch.arange(len(eid))
        self._written.add(eid, label, t, at)
        is_held = self._of_event.has(eid)
        self._of_event.set(1, eid[is_held], 1 + numbers[is_held])  # the last one of several
        waiting = torch.cat([self._waiting, numbers[~torch.isin(numbers, self._never)]])
        self._waiting = waiting[self._written.at(waiting)[2].argsort(stable=True)]
        return numbers

    def _settle(self, *, after: int | None = None) -> None:
        """Order the entries that have become known as the log grew, after those known before.

        Of a checkpoint's entries those known up to the position `after` are not kept.
        """
        if not len(self._waiting):  # of events, so that there are some
            return
        size = len(self._log)  # the clock may be ahead of it while events are appended
        last = int(self._log.columns(size - 1, size)[2][0])
        eid, _, t, written_at = self._written.at(self._waiting)
        num = int(torch.searchsorted(t, last))
        # Others may be written at the same position, to be ordered with these.
        is_due = written_at[:num] < size
        due, self._waiting = (
            self._waiting[:num][is_due],
            torch.cat([self._waiting[:num][~is_due], self._waiting[num:]]),
        )
        # Of times before the last event's, so that the next event that is later is in the log.
        self._log.positions(t[:num][is_due] + 1, later := torch.empty_like(due))
        known_at, order = torch.maximum(later, written_at[:num][is_due]).sort(stable=True)
        due, eid = due[order], eid[:num][is_due][order]
        is_seen = self._are_seen(eid, known_at) if after is None else known_at > after
        if after is None:
            self._never = torch.cat([self._never, due[~is_seen]])
        due, eid, known_at = due[is_seen], eid[is_seen], known_at[is_seen]
        if not (num := len(due)):
            return
        places = self._known.stop + torch.arange(num)
        by_event = eid.argsort(stable=True)
        grouped = eid[by_event]
        is_held = self._of_event.has(grouped)
        before = torch.where(is_held, self._of_event.at(grouped)[0], 0) - 1
        same = grouped[1:] == grouped[:-1]
        before[1:] = torch.where(same, places[by_event][:-1], before[1:])
        is_last = torch.ones(num, dtype=torch.bool)
        is_last[:-1] = ~same
        previous = torch.empty_like(before)
        previous[by_event] = before
        self._known.add(known_at, due, eid, previous)
        heads = is_last & is_held
        self._of_event.set(0, grouped[heads], 1 + places[by_event][heads])

    def _are_seen(self, eid: Tensor, known_at: Tensor) -> Tensor:
        is_seen = eid >= self._since(len(self._log))
        for at in torch.unique(known_at[~is_seen]).tolist():
            is_seen |= (known_at == at) & (eid >= self._since(at))
        return is_seen

    def forget(self, first: int) -> None:
        """Free what batches that see events from `first` on do not read, `first` included."""
        with self._lock:
            self._settle()
            eid = self._written.at(self._waiting)[0]
            self._never = torch.cat([self._never, self._waiting[eid < first]])
            self._waiting = self._waiting[eid >= first]
            number, place = self._needed(first)
            self._written.drop(number // self._piece() * self._piece())
            self._never = self._never[self._never >= number]
            self._known.drop(place)
            self._of_event.drop(first)
            while self._outside and self._outside[0][0] < first:
                self._outside.popleft()

    def _needed(self, first: int) -> tuple[int, int]:
        """Return the first entry and place that batches which see events from `first` on need."""
        known_at, numbers, _, _ = self._known.all
        place = int(torch.searchsorted(known_at, first, right=True))
        after = int(torch.searchsorted(self._written.all[3], first, right=True))
        number, later = self._written.first + after, numbers[place:]
        return min(number, int(later.min())) if len(later) else number, self._known.first + place

    def num_outside(self, begin: int, end: int) -> int:
        """Return the number of entries refused at log positions `[begin, end)`."""
        return sum(num for at, num in self._outside if begin <= at < end)

    def find(self, eid: Tensor, at: int | Tensor) -> Tensor:
        """Return the places of the entries that give events their labels, int64 `[N]`; -1: none.

        As seen from positions `at` below the log's end. An entry's place is its rank in the order
        in which they became known, which never changes. Negative events have no entry.
        """
        with self._lock:
            self._settle()
            if not self._known.stop:
                return torch.full_like(eid, -1)
            place = torch.where(self._of_event.has(eid), self._of_event.at(eid)[0] - 1, -1)
            while True:
                known_at, _, _, before = self._known.at(place)
                is_ahead = (place >= 0) & (known_at > at)
                if not is_ahead.any():
                    return place
                place = torch.where(is_ahead, before, place)

    def labels(self, eid: Tensor, at: int | Tensor, otherwise: Tensor) -> Tensor:
        """Return the labels of events as seen from positions, or else `otherwise`, int64 `[N]`."""
        place = self.find(eid, at)
        with self._lock:
            label = self._written.at(self._known.at(place)[1])[1]
        return torch.where(place < 0, otherwise, label)

    def num_known(self, at: Tensor) -> Tensor:
        """Return the numbers of entries that may be seen from positions below the log's end."""
        with self._lock:
            self._settle()
            keys = self._known.all[0]
            return self._known.first + torch.searchsorted(keys, at.contiguous(), right=True)

    def known(self, places: Tensor | slice) -> KnownLabels:
        """Return the entries at places: of those that were forgotten, any other."""
        with self._lock:
            if isinstance(places, slice):
                places = torch.arange(places.start, places.stop)
            known_at, number, eid, before = self._known.at(places)
            _, label, t, _ = self._written.at(number)
            return KnownLabels(eid, label, t, known_at, before)

    def fresh(self, position: int) -> LateLabels:
        """Return the entries that an event at a position could see, but not the one before.

        By time: those before the event's, if it is later than the event before it.
        """
        with self._lock:
            self._settle()
            known_at, known, _, _ = self._known.all
            first = int(torch.searchsorted(known_at, position - 1, right=True))
            numbers = torch.cat([known[first:], self._waiting])
            eid, _, _, written_at = self._written.at(numbers)
            is_fresh = (written_at <= position) & (eid >= self._since(position))
            numbers = numbers[is_fresh].sort().values
            numbers = numbers[self._written.at(numbers)[2].argsort(stable=True)]
            return LateLabels(*self._written.at(numbers)[:3])

    def num_upto(self, position: int) -> int:
        """Return the number of entries that a checkpoint of so many events holds."""
        with self._lock:
            written_at = self._written.all[3]
            num = self.first + int(torch.searchsorted(written_at, position))
            is_kept = self._kept > num and int(written_at[self._kept - 1 - self.first]) == position
            return self._kept if is_kept else num

    def read(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return `LATE_COLUMNS` of entries as views: do not write to them."""
        return self.reader()(start, stop)

    def reader(self) -> Callable[[int, int], dict[str, Tensor]]:
        """Return `read` of the entries so far, for another thread, whatever is forgotten."""
        read = self._written.reader()
        return lambda start, stop: dict(zip(LATE_COLUMNS, read(start, stop), strict=True))

    def kept(self, first: int) -> KeptEntries:
        """Return what a checkpoint needs whose batches see events from `first` on."""
        with self._lock:
            self._settle()
            number, place = self._needed(first)
            eid = self._written.at(self._waiting)[0]
            never = torch.cat([self._never, self._waiting[eid < first]])
            return KeptEntries(number, place, never[never >= number].sort().values)

    def load(self, columns: Mapping[str, Tensor]) -> None:
        """Add entries that `read` returned; ValueError if of another log, or not in order."""
        eid, label, t, at = (columns[name] for name in LATE_COLUMNS)
        if not len(eid):
            return
        with self._lock:
            last = self._written.all[3, -1:]
            is_ordered = bool((torch.cat([last, at]).diff() >= 0).all())
            is_within = int(eid.min()) >= 0 and bool((eid < at).all()) and at[-1] <= len(self._log)
            if not (is_ordered and is_within):
                raise ValueError("late labels are of other events, or not in order")
            self._of_event.grow(int(eid.max()) + 1)
            self._write(eid, label, t, at)
            self._kept = len(self)

    def load_from(
        self, pieces: Iterable[Mapping[str, Tensor]], start: int, kept: KeptEntries, since: int
    ) -> None:
        """Load entries from number `start` on into an empty log, as `kept(since)` was then."""
        self._written.drop(start)
        self._known.drop(kept.place)
        self._of_event.drop(since)
        self._never = kept.never
        for piece in pieces:
            self.load(piece)
        with self._lock:
            self._waiting = self._waiting[self._waiting >= kept.first]
            self._settle(after=since or -1)


class NodeCount:
    """Number of nodes in a prefix of a log; for growing prefixes each event is read once.

    Of the events held now it is `least`: some nodes may be in no event any more.
    """

    def __init__(self, log: EventLog, least: int = 0) -> None:
        self._log, self._least = log, least
        self._found = log.before
        """A position, and the number of nodes of the events before it."""

    def upto(self, position: int) -> int:
        """Return the largest node id of the first `position` events plus one."""
        start, num = self._found
        if not self._log.before[0] <= start <= position:
            start, num = self._log.before
        num = max(num, self._least)
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
        held = self._held  # is never changed, but replaced
        if since not in held:
            with self._lock:
                held = self._held
                if since not in held:
                    held = held | {since: self._make(since)}
                    self._held = {first: held[first] for first in sorted(held)[-4:]}
        return held[since]


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

    def begins(self, at: Any, first: int, clock: Any) -> Any:
        """Return `begin` of positions as NumPy arrays, by the log's clock from `first` on."""
        begin = np.zeros_like(at)
        if self.events is not None:
            step = self.events // STEPS
            begin = np.maximum(begin, (at - self.events) // step * step)
        if self.ticks is not None and len(clock):
            step, t = self.ticks // STEPS, clock[np.maximum(at - 1 - first, 0)]
            later = first + np.searchsorted(clock, t // step * step - self.ticks)
            begin = np.where(at > 0, np.maximum(begin, np.minimum(at, later)), begin)
        return begin

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
