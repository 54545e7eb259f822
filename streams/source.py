"""A source: an ordered stream of event batches, from files or tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from tgflow.events import EventBatch
from tgflow.ids import NodeIds
from tgflow.streams.errors import StreamError
from tgflow.streams.files.reader import Reader, ReadRows
from tgflow.streams.rows.batch import event_batch
from tgflow.streams.rows.columns import EventColumns

SORTED_ROWS = 1 << 16


@runtime_checkable
class Source(Protocol):
    """Batches of events in arrival order, of any size, times never decreasing."""

    x_dim: int
    """Width of the edge features, 0 without them."""
    ids: NodeIds
    """The map from the stream's node ids to dense ones; it grows while the source is read."""
    unit: str
    """What a tick is, one of `tgflow.units.UNITS`."""
    num_events: int | None
    """How many events there will be, or None if that is not known."""

    def __iter__(self) -> Iterator[EventBatch]:
        """Return the events from the start."""
        ...


class EventSource:
    """The events of files or tables, one after another, up to the first row that is none.

    Args:
        reader: What reads the files.
        unit: What a tick is.
        ids: The map that node ids go through.
        sort: Whether to read everything first and sort it by time, ties in file order.
    """

    def __init__(self, reader: Reader, unit: str, ids: NodeIds, sort: bool) -> None:
        self.ids = ids
        self.unit = unit
        self.num_events = reader.num_events
        self.x_dim = sum(reader.widths)
        self.progress = 0.0
        """Which share of the data the latest iteration has read, 0 to 1."""
        self._reader = reader
        self._sort = sort

    def __iter__(self) -> Iterator[EventBatch]:
        """Return the events from the start.

        Raises:
            StreamError: At the first row that is no event; the events before it come first.
        """
        self.progress = 0.0
        good = self._good()
        for events in _by_time(good) if self._sort else _in_order(good):
            yield event_batch(events, self.ids)

    def _good(self) -> Iterator[tuple[ReadRows, EventColumns]]:
        """Yield the events of all files; a bad row ends it, after the rows before it."""
        for rows in self._reader.read():
            self.progress = rows.progress
            fault = rows.faults[0] if rows.faults else None
            events = rows.events if fault is None else rows.events.take(slice(0, fault.row))
            if len(events):
                yield rows, events
            if fault is not None:
                raise StreamError(rows.places.where(fault.row), fault.code, fault.text)
        self.progress = 1.0


def _in_order(good: Iterator[tuple[ReadRows, EventColumns]]) -> Iterator[EventColumns]:
    """Yield the events, making sure that times never decrease."""
    latest: int | None = None
    for rows, events in good:
        before = np.concatenate(([events.t[0] if latest is None else latest], events.t[:-1]))
        late = events.t < before
        if late.any():
            row = int(late.argmax())  # all rows before it are events: it is the row's number too
            if row:
                yield events.take(slice(0, row))
            text = f"tick {events.t[row]} comes after tick {before[row]}; times must not decrease"
            way_out = "pass sort=True to read everything first and sort it by time"
            raise StreamError(rows.places.where(row), "time_order", f"{text}: {way_out}")
        latest = int(events.t[-1])
        yield events


def _by_time(good: Iterator[tuple[ReadRows, EventColumns]]) -> Iterator[EventColumns]:
    """Yield all events sorted by time, ties in the order they came; reads everything first."""
    parts = [events for _, events in good]
    if not parts:
        return
    label = [part.label for part in parts if part.label is not None]
    x = [part.x for part in parts if part.x is not None]
    events = EventColumns(
        pa.concat_arrays([part.src for part in parts]),
        pa.concat_arrays([part.dst for part in parts]),
        np.concatenate([part.t for part in parts]),
        np.concatenate(label) if label else None,
        np.concatenate(x) if x else None,
    )
    order = np.argsort(events.t, kind="stable")
    for start in range(0, len(order), SORTED_ROWS):
        yield events.take(order[start : start + SORTED_ROWS])
