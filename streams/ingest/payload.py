"""Columns of events that are written once and read once, in another order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from tgflow.streams.ingest.ordered_rows import Rows
from tgflow.streams.rows.checks import Int64s
from tgflow.streams.rows.columns import EventColumns

SLAB_BYTES = 4 << 20
MIN_SLAB_ROWS = 1 << 10
SLAB_BITS = 18
"""A row's index is the number of its slab, then these many bits for its place in it."""
_OFFSET_MASK = (1 << SLAB_BITS) - 1


class Slab:
    """A stretch of rows; written from front to back, never over.

    Args:
        like: Events with the columns it is to hold.
        capacity: How many rows it holds.
    """

    def __init__(self, like: EventColumns, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._ids = [_ids_like(like.src, capacity), _ids_like(like.dst, capacity)]
        self._label = None if like.label is None else np.empty(capacity, np.int64)
        self._x = None if like.x is None else np.empty((capacity, like.x.shape[1]), np.float32)
        self._event_id = None if like.event_id is None else _StringIds()

    def append(self, events: EventColumns) -> None:
        """Add rows for which there is room."""
        start, self.size = self.size, self.size + len(events)
        for column, ids in zip(self._ids, (events.src, events.dst), strict=True):
            column.append(start, ids)
        if self._label is not None and events.label is not None:
            self._label[start : self.size] = events.label
        if self._x is not None and events.x is not None:
            self._x[start : self.size] = events.x
        if self._event_id is not None and events.event_id is not None:
            self._event_id.append(start, events.event_id)

    def take(self, rows: slice | Int64s, t: Int64s) -> EventColumns:
        """Return rows with the times `t`; views if `rows` is a slice."""
        return EventColumns(
            self._ids[0].take(rows),
            self._ids[1].take(rows),
            t,
            None if self._label is None else self._label[rows],
            None if self._x is None else self._x[rows],
            None if self._event_id is None else self._event_id.take(rows),
        )


class SharedSlab:
    """A stretch of rows that was made elsewhere; it is not copied, and never changes.

    Args:
        events: The rows.
    """

    def __init__(self, events: EventColumns) -> None:
        self.size = len(events)
        self._events = events

    def take(self, rows: slice | Int64s, t: Int64s) -> EventColumns:
        """Return rows with the times `t`; views if `rows` is a slice."""
        return replace(self._events.take(rows), t=t)


class _IntIds:
    def __init__(self, capacity: int) -> None:
        self._values = np.empty(capacity, np.int64)

    def append(self, start: int, ids: pa.Array) -> None:
        self._values[start : start + len(ids)] = ids.to_numpy()

    def take(self, rows: slice | Int64s) -> pa.Array:
        return pa.array(self._values[rows])


class _StringIds:
    """Pieces that are joined as they grow, so that there are few of them."""

    def __init__(self) -> None:
        self._pieces: list[pa.Array] = []

    def append(self, start: int, ids: pa.Array) -> None:
        pieces = [*self._pieces, ids]
        while len(pieces) > 1 and len(pieces[-1]) >= len(pieces[-2]):
            pieces[-2:] = [pa.concat_arrays(pieces[-2:])]
        self._pieces = pieces

    def take(self, rows: slice | Int64s) -> pa.Array:
        index = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        taken = pa.chunked_array(self._pieces).take(pa.array(index))
        return taken.combine_chunks()


def _ids_like(ids: pa.Array, capacity: int) -> _IntIds | _StringIds:
    return _IntIds(capacity) if pa.types.is_integer(ids.type) else _StringIds()


Slabs = Mapping[int, Slab | SharedSlab]
"""Slabs by number."""


@dataclass(slots=True)
class Payload:
    """Slabs, each kept for as long as one of its rows is wanted."""

    slabs: dict[int, Slab | SharedSlab] = field(default_factory=dict)
    _wanted: dict[int, int] = field(default_factory=dict)
    _open: Slab | None = None
    _open_number: int = -1
    _next: int = 0

    @property
    def num_rows(self) -> int:
        """How many rows its slabs hold, wanted or not."""
        return sum(slab.size for slab in self.slabs.values())

    def add(self, rows: Rows, *, copy: bool = False) -> Int64s:
        """Store rows and return where they are; many at a time are only copied if `copy`."""
        parts, start = [], 0
        while start < len(rows):
            if len(rows) - start >= MIN_SLAB_ROWS and not copy:
                size = min(len(rows) - start, 1 << SLAB_BITS)
                number, first = self._put(SharedSlab(rows.events.stretch(start, start + size))), 0
            else:
                slab, number = self._writable(rows)
                first, size = slab.size, min(slab.capacity - slab.size, len(rows) - start)
                slab.append(rows.events.stretch(start, start + size))
            self._wanted[number] += size
            first += number << SLAB_BITS
            parts.append(np.arange(first, first + size))
            start += size
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def forget(self, index: Int64s) -> None:
        """Give back the rows at `index`, at least one."""
        first, last = _slabs_of(index)
        counts = [len(index)]
        if first != last:
            counts = np.bincount((index >> SLAB_BITS) - first).tolist()
        for number, count in enumerate(counts, first):
            if count:
                self._wanted[number] -= count
                if not self._wanted[number] and number != self._open_number:
                    del self.slabs[number], self._wanted[number]

    def _put(self, slab: Slab | SharedSlab) -> int:
        """Add a slab and return its number."""
        number, self._next = self._next, self._next + 1
        self.slabs[number], self._wanted[number] = slab, 0
        return number

    def _writable(self, rows: Rows) -> tuple[Slab, int]:
        """Return the slab to write to, which has room, and its number."""
        slab = self._open
        if slab is not None and slab.size < slab.capacity:
            return slab, self._open_number
        if slab is not None and not self._wanted[self._open_number]:
            del self.slabs[self._open_number], self._wanted[self._open_number]
        row_bytes = int(np.mean(rows.sizes()))
        capacity = min(max(SLAB_BYTES // row_bytes, MIN_SLAB_ROWS), 1 << SLAB_BITS)
        self._open = Slab(rows.events, capacity)
        self._open_number = self._put(self._open)
        return self._open, self._open_number


def take(slabs: Slabs, index: Int64s, t: Int64s) -> EventColumns:
    """Return the events at `index`, at least one, whose times are `t`."""
    first, last = _slabs_of(index)
    if first == last:
        return slabs[first].take(_as_slice(index - (first << SLAB_BITS)), t)
    numbers, places = index >> SLAB_BITS, index & _OFFSET_MASK
    parts, origins = [], []
    for number in range(first, last + 1):
        rows = np.flatnonzero(numbers == number)
        if len(rows):
            parts.append(slabs[number].take(places[rows], t[rows]))
            origins.append(rows)
    order = np.empty(len(index), np.int64)
    order[np.concatenate(origins)] = np.arange(len(index))
    return EventColumns.concat(parts).take(order)


def _slabs_of(index: Int64s) -> tuple[int, int]:
    """Return the numbers of the first and the last slab that rows are in."""
    return int(index.min()) >> SLAB_BITS, int(index.max()) >> SLAB_BITS


def _as_slice(places: Int64s) -> slice | Int64s:
    """Return `places` as a slice if they follow one another."""
    first, stop = int(places[0]), int(places[-1]) + 1
    if stop - first == len(places) and bool((np.diff(places) == 1).all()):
        return slice(first, stop)
    return places
