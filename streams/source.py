"""A source: an ordered stream of event batches, from files or tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import torch

from tgflow.events import EventBatch
from tgflow.ids import NodeIds
from tgflow.streams.columns import AS_TEXT, EventColumns
from tgflow.streams.decoder import Decoder, Rows
from tgflow.streams.errors import RowFault, StreamError, shown
from tgflow.streams.schema import Columns, IdKind, Schema
from tgflow.streams.validate import Form, validate

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
    """The events of files or tables, one after another.

    Args:
        decoders: The files in order.
        schema: Which columns make an event.
        ids: The map that node ids go through.
        sort: Whether to read everything first and sort it by time, ties in file order.

    Raises:
        StreamError: If the first file lacks a column, or its first ids are neither integers nor
            strings.
    """

    def __init__(
        self, decoders: Sequence[Decoder], schema: Schema, ids: NodeIds, sort: bool
    ) -> None:
        self.ids = ids
        self.unit = schema.time.tick
        counts = [decoder.num_events for decoder in decoders]
        known = [count for count in counts if count is not None]
        self.num_events = sum(known) if len(known) == len(counts) else None
        self._decoders = decoders
        self._schema = schema
        self._sort = sort
        self._current = 0
        self._id_kind: IdKind = "int"
        self._widths: tuple[int, ...] = ()
        self._look_ahead()
        self.x_dim = sum(self._widths)

    def __iter__(self) -> Iterator[EventBatch]:
        """Return the events from the start.

        Raises:
            StreamError: At the first row that is no event; the events before it come first.
        """
        decoded = self._decoded()
        for events in _by_time(decoded) if self._sort else _in_order(decoded):
            yield self._batch(events)

    @property
    def progress(self) -> float:
        """Which share of the data the latest iteration has read, 0 to 1."""
        total = sum(decoder.size for decoder in self._decoders)
        done = sum(decoder.size for decoder in self._decoders[: self._current])
        if self._current < len(self._decoders):
            current = self._decoders[self._current]
            done += round(current.size * current.progress())
        return done / total if total else 1.0

    def _look_ahead(self) -> None:
        """Learn the width of the features and the kind of ids from the first row there is."""
        for decoder in self._decoders:
            columns = self._schema.select(decoder)
            if columns is None:
                continue
            self._widths = (1,) * len(columns.features)
            row = decoder.first(columns)
            if row is None:
                continue
            values = [row.get(name) for name in columns.features]
            self._widths = tuple(len(v) if isinstance(v, list) else 1 for v in values)
            both = {name: row.get(name) for name in (columns.src, columns.dst)}
            self._id_kind = self._schema.id_kind or _id_kind(decoder.first_place, both)
            return

    def _decoded(self) -> Iterator[tuple[Rows, EventColumns]]:
        """Yield the rows of all files as columns; a bad row ends it, after the rows before it."""
        for i, decoder in enumerate(self._decoders):
            self._current = i
            columns = self._schema.select(decoder)
            if columns is None:
                continue
            for rows in decoder.read(columns, self._id_kind, self._schema.time):
                events, fault = self._good(rows.batch, columns)
                if events is not None:
                    yield rows, events
                if fault is not None:
                    raise rows.fault(fault)
        self._current = len(self._decoders)

    def _good(
        self, batch: pa.RecordBatch, columns: Columns
    ) -> tuple[EventColumns | None, RowFault | None]:
        """Return the events before the first bad row, if any, and what is wrong with that one."""
        form = Form(columns, self._id_kind, self._schema.time, self._widths)
        rows = validate(batch, form)
        if not rows.faults:
            return rows.events, None
        fault = rows.faults[0]
        return rows.events.take(slice(0, fault.row)) if fault.row else None, fault

    def _batch(self, events: EventColumns) -> EventBatch:
        src, dst = self.ids.encode(events.src, events.dst)
        return EventBatch(
            src,
            dst,
            torch.from_numpy(events.t),
            None if events.x is None else torch.from_numpy(events.x),
            None if events.label is None else torch.from_numpy(events.label),
        )


def _id_kind(where: str, first: dict[str, object]) -> IdKind:
    """Return "int" if all ids of the first row are integers, "string" if one is a string."""
    for column, value in first.items():
        if value is not None and (not isinstance(value, int | str) or isinstance(value, bool)):
            text = f"{column} is {shown(value)}, expected an integer or a string"
            raise StreamError(where, "type", f"{text}; {AS_TEXT}")
    return "string" if any(isinstance(value, str) for value in first.values()) else "int"


def _in_order(decoded: Iterator[tuple[Rows, EventColumns]]) -> Iterator[EventColumns]:
    """Yield the events, making sure that times never decrease."""
    latest: int | None = None
    for rows, events in decoded:
        before = np.concatenate(([events.t[0] if latest is None else latest], events.t[:-1]))
        late = events.t < before
        if late.any():
            row = int(late.argmax())
            if row:
                yield events.take(slice(0, row))
            text = f"tick {events.t[row]} comes after tick {before[row]}; times must not decrease"
            way_out = "pass sort=True to read everything first and sort it by time"
            raise rows.fault(RowFault(row, "time_order", f"{text}: {way_out}"))
        latest = int(events.t[-1])
        yield events


def _by_time(decoded: Iterator[tuple[Rows, EventColumns]]) -> Iterator[EventColumns]:
    """Yield all events sorted by time, ties in the order they came; reads everything first."""
    parts = [events for _, events in decoded]
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
