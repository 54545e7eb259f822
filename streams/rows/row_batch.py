"""Rows between decoder and ingestion, and the interface of the sources that deliver them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from tgflow.events import COLUMNS, EventBatch
from tgflow.ids import NodeIds
from tgflow.streams.errors import RowFault
from tgflow.streams.rows.schema import IdKind

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]

Fault = tuple[str, str]
"""A code of `tgflow.streams.errors.CODES`, and what was wrong and what arrived."""

Position: TypeAlias = dict[str, int | float | str | None]
"""Where a partition resumes, as its source writes it: plain values that JSON can hold."""

Location: TypeAlias = Mapping[str, int | str]
"""Where a row stood, for a person: {"topic", "partition", "offset", "row"} or {"file", "byte"}."""


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Events before their ids are mapped: a field for each column, None for one that is missing.

    `src` and `dst` are Arrow int64 or string arrays. `event_id` is the id of each event as text, if
    the stream has one and it is kept. All methods apply to every field.
    """

    src: pa.Array
    dst: pa.Array
    t: Int64s
    label: Int64s | None
    x: Float32s | None
    event_id: pa.Array | None = None
    weight: Float32s | None = None

    def __len__(self) -> int:
        return len(self.t)

    def columns(self) -> dict[str, Any]:
        """Return the columns that are present, by name."""
        found = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: column for name, column in found if column is not None}

    def take(self, rows: slice | Int64s) -> EventColumns:
        """Return the events at `rows`, in that order; a slice with step 1 copies nothing."""
        return replace(self, **{n: _taken(column, rows) for n, column in self.columns().items()})

    def keeping_ids(self, keep: bool) -> EventColumns:
        """Return the events with their ids, null where they are not known; or without any."""
        if keep == (self.event_id is not None):
            return self
        return replace(self, event_id=pa.nulls(len(self), pa.string()) if keep else None)

    @classmethod
    def concat(cls, parts: Sequence[EventColumns]) -> EventColumns:
        """Return at least one part, one after another; all have the same columns."""
        if len(parts) == 1:
            return parts[0]
        columns = [part.columns() for part in parts]
        return replace(parts[0], **{n: joined([c[n] for c in columns]) for n in columns[0]})


def _taken(column: Any, rows: slice | Int64s) -> Any:
    if isinstance(column, np.ndarray) or isinstance(rows, slice):
        return column[rows]
    if pa.types.is_integer(column.type):  # Arrow releases the GIL: 1 ms beside a parsing thread
        return pa.array(column.to_numpy()[rows])
    return column.take(pa.array(rows))


def joined(parts: Sequence[Any]) -> Any:
    """Return Arrow or NumPy columns of one type as one column."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return pa.concat_arrays(parts)


def to_batch(events: EventColumns, ids: NodeIds) -> EventBatch:
    """Return events with dense ids; `ids` gives new ones to nodes not yet seen."""
    src, dst = ids.encode(events.src, events.dst)
    others: dict[str, Any] = {
        name: torch.from_numpy(x if x.flags.writeable else x.copy())  # Arrow's cannot be written to
        for name, x in events.columns().items()
        if name in COLUMNS.keys() - {"src", "dst"}
    }
    return EventBatch(src, dst, **others)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a row came from."""

    place: Location
    raw: bytes

    @property
    def where(self) -> str:
        """Its location in a message, as `events.csv, line 812`."""
        if "file" in self.place:
            unit = "line" if "line" in self.place else "row"
            return f"{self.place['file']}, {unit} {self.place[unit]}"
        return ", ".join(f"{name} {value}" for name, value in self.place.items())


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was rejected."""

    index: int
    code: str
    text: str
    origin: Origin


def nowhere(row: int) -> Origin:
    """Return the origin of a row of which only its number is known."""
    return Origin({"row": row}, b"")


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows of one partition in the order they stand there: events, and what is wrong with others.

    Rows are numbered from 0 within the batch, good and bad ones alike. Records that are no rows, as
    Kafka's tombstones, are not numbered among them.

    Args:
        events: The good rows.
        index: Of each good row its number, int64, increasing; None if all are good.
        faults: What is wrong with each of the others, by number.
        num_rows: How many rows there are.
        locate: Returns where a row came from, by number; slow, for messages and dead letters.
        position: Where the partition resumes after these rows.
        event_ids: Of each good row an id by which duplicates are found, a 64-bit hash as int64, or
            None.
        partition: The partition.
        counts: What else was met on the way, such as {"tombstone": 2}; not rows.
        gaps: What was skipped just before, `[begin, end)` in the source's own numbers.
    """

    events: EventColumns
    index: Int64s | None = None
    faults: Sequence[RowFault] = ()
    num_rows: int = 0
    locate: Callable[[int], Origin] = nowhere
    position: Position = field(default_factory=dict)
    event_ids: Int64s | None = None
    partition: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    gaps: Sequence[tuple[int, int]] = ()

    def origin(self, i: int) -> Origin:
        """Return where good row `i` came from."""
        return self.locate(i if self.index is None else int(self.index[i]))

    def bad(self) -> list[BadRow]:
        """Return the bad rows with their origins."""
        return [BadRow(f.row, f.code, f.text, self.locate(f.row)) for f in self.faults]


class PartitionedSource(Protocol):
    """Partitions of rows, each in an order of its own that never changes.

    Files, one after another, are one partition; a Kafka topic has its own. Not thread-safe.
    """

    name: str
    """What messages and reports call it."""
    unit: str
    """What a tick is, one of `tgflow.units.UNITS`."""
    x_dim: int
    """Width of the edge features, 0 without them."""
    id_kind: IdKind
    """What the node ids are."""
    ids: NodeIds
    """An empty map for the ids (bipartite if the source is); ordering the events fills it."""
    num_events: int | None
    """How many rows there will be, or None if that is not known."""

    def start(self, positions: Mapping[int, Position]) -> None:
        """Start, or resume, at `positions`; a partition without one is read from its beginning.

        Raises:
            SourceExpired: If a partition no longer holds what comes next.
            SourceTruncated: If a partition ends before its position.
            SourceMismatch: If what stood before a position is no longer what it was.
            SourceUnavailable: If it cannot be reached in time.
        """
        ...

    def partitions(self) -> Sequence[int]:
        """Return the partitions there are, known after `start`."""
        ...

    def look_for_partitions(self) -> Sequence[int]:
        """Return the partitions that came since, and read them from their beginning from now on."""
        return []

    def poll(self, wanted: Set[int], timeout: float) -> list[RowBatch]:
        """Return what has arrived in the partitions `wanted`, waiting up to `timeout` seconds.

        The others are paused: they keep what they have. An empty list means that nothing came.

        Raises:
            StreamError: If the source cannot continue, one of its kinds in `tgflow.streams.errors`.
        """
        ...

    def ended(self) -> Set[int]:
        """Return the partitions of which nothing more will ever come."""
        ...

    def lag(self) -> Mapping[int, int]:
        """Return how many records each partition holds that were not polled yet, where known."""
        return {}

    def progress(self) -> float:
        """Return which share of it has been polled, 0 to 1; 0 where that is not known."""
        ...

    def counters(self) -> Mapping[str, float]:
        """Return what it has met so far, such as {"rebuilds": 2, "outage_seconds": 3.5}."""
        return {}

    def committed(self, positions: Mapping[int, Position]) -> None:
        """Note that a checkpoint holds all before `positions`; never raises."""
        return

    def close(self) -> None:
        """Release its resources; never waits for more than a few seconds."""
        ...


@runtime_checkable
class Stoppable(Protocol):
    """A source that may wait long, as for a broker, and can be told to stop."""

    stop: Callable[[], bool]
    """Called while it waits; once it returns True, `start` returns with nothing started."""
