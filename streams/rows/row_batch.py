"""Batches of rows between decoder and ingestion, and the interface of partitioned sources."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from tgflow.graph.events import COLUMNS, EventBatch
from tgflow.graph.ids import NodeIds
from tgflow.streams.rows.schema import IdKind, time_guard

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]

Fault = tuple[str, str]
"""A code of `tgflow.streams.errors.CODES`, and a message with the fault and the value."""

Position: TypeAlias = dict[str, int | float | str | None]
"""Resume position of a partition in its source's form: JSON-serializable values."""

Location: TypeAlias = Mapping[str, int | str]
"""Location of a row for messages: {"topic", "partition", "offset", "row"} or {"file", "byte"}."""


@dataclass(frozen=True, slots=True, eq=False)
class EventColumns:
    """Events before their ids are mapped: a field for each column, None for an absent one.

    `src` and `dst` are Arrow int64 or string arrays. `event_id` holds the event ids as text, if
    the stream has ids and they are kept, and `event_id_hash` 64 bits of each, used to find
    duplicates. `rank` is set on admission: it orders the events of one tick, see
    `tgflow.streams.ingest.ordering.ranks`. `label_time` is the time of the label, in rows of labels
    that come after their events. All methods apply to every field.
    """

    src: pa.Array
    dst: pa.Array
    t: Int64s
    label: Int64s | None
    x: Float32s | None
    event_id: pa.Array | None = None
    weight: Float32s | None = None
    relation: Int64s | None = None
    event_id_hash: Int64s | None = None
    label_time: Int64s | None = None
    rank: Int64s = None  # type: ignore[assignment]

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
        """Return the events with their ids, null where unknown; or without any."""
        if keep == (self.event_id is not None):
            return self
        return replace(self, event_id=pa.nulls(len(self), pa.string()) if keep else None)

    @classmethod
    def concat(cls, parts: Sequence[EventColumns]) -> EventColumns:
        """Concatenate at least one part; all have the same columns."""
        if len(parts) == 1:
            return parts[0]
        columns = [part.columns() for part in parts]
        joined = {}
        for name, first in columns[0].items():
            join = np.concatenate if isinstance(first, np.ndarray) else pa.concat_arrays
            joined[name] = join([each[name] for each in columns])
        return replace(parts[0], **joined)


def _taken(column: Any, rows: slice | Int64s) -> Any:
    if isinstance(column, np.ndarray) or isinstance(rows, slice):
        return column[rows]
    if pa.types.is_integer(column.type):  # Arrow releases the GIL: 1 ms beside a parsing thread
        return pa.array(column.to_numpy()[rows])
    return column.take(pa.array(rows))


def to_batch(events: EventColumns, ids: NodeIds) -> EventBatch:
    """Return events with dense ids; `ids` adds nodes not yet seen."""
    src, dst = ids.encode(events.src, events.dst)
    others: dict[str, Any] = {
        name: torch.from_numpy(x if x.flags.writeable else x.copy())  # Arrow's are read-only
        for name, x in events.columns().items()
        if name in COLUMNS.keys() - {"src", "dst"}
    }
    return EventBatch(src, dst, **others)


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a row."""

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
    """Return an origin with only the row number."""
    return Origin({"row": row}, b"")


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows of one partition in order: events, and the faults of bad rows.

    Rows are numbered from 0 within the batch, good and bad alike. Records that are not rows, such
    as Kafka's tombstones, are not numbered.

    Args:
        index: Number of each good row, int64, increasing; None if all are good.
        faults: Faults of the other rows, by number, in increasing order.
        locate: Returns the origin of a row by number; slow, for messages and dead letters.
        position: Resume position after these rows.
        counts: Counts of other items, such as {"tombstone": 2}; not rows.
        gaps: Ranges skipped just before, `[begin, end)` in the source's numbering.
        written: When the good rows were written, in ms since 1970, -1 if unknown; None: unknown.
    """

    events: EventColumns
    index: Int64s | None = None
    faults: Mapping[int, Fault] = field(default_factory=dict)
    num_rows: int = 0
    locate: Callable[[int], Origin] = nowhere
    position: Position = field(default_factory=dict)
    partition: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    gaps: Sequence[tuple[int, int]] = ()
    written: Int64s | None = None

    def bad(self) -> list[BadRow]:
        """Return the bad rows with their origins."""
        return [BadRow(row, *fault, self.locate(row)) for row, fault in self.faults.items()]


def warn_of_first_time(log: logging.Logger, arrived: Sequence[RowBatch], unit: str) -> bool:
    """Return whether there is an event; warn if the time of the first one is implausible."""
    for rows in arrived:
        if len(rows.events):
            if text := time_guard(int(rows.events.t[0]), unit):
                log.warning("%s", text)
            return True
    return False


class PartitionedSource(Protocol):
    """Partitions of rows, each in a fixed order of its own.

    Files in sequence are one partition; a Kafka topic has its own. Not thread-safe.
    """

    name: str
    """Name in messages and reports."""
    unit: str
    """Unit of a tick, one of `tgflow.base.units.UNITS`."""
    x_dim: int
    """Width of the edge features, 0 without them."""
    id_kind: IdKind
    """Type of the node ids."""
    ids: NodeIds
    """An empty id map (bipartite if the source is); filled as the events are ordered."""
    num_events: int | None
    """Expected number of rows, or None if unknown."""

    def start(self, positions: Mapping[int, Position]) -> None:
        """Start or resume at `positions`; a partition without one is read from its beginning.

        Raises:
            SourceExpired: If a partition no longer holds the next rows.
            SourceTruncated: If a partition ends before its position.
            SourceMismatch: If the data before a position has changed.
            SourceUnavailable: If the source cannot be reached in time.
        """
        ...

    def partitions(self) -> Sequence[int]:
        """Return the partitions, known after `start`."""
        ...

    def look_for_partitions(self) -> Sequence[int]:
        """Return the partitions added since; they are read from their beginning from now on."""
        return []

    def poll(self, wanted: Set[int], timeout: float) -> list[RowBatch]:
        """Return rows of the partitions `wanted`, waiting up to `timeout` seconds.

        The other partitions are paused, without loss. An empty list means that nothing arrived.

        Raises:
            StreamError: If the source cannot continue; subclasses are in `tgflow.streams.errors`.
        """
        ...

    def ended(self) -> Set[int]:
        """Return the partitions that have ended for good."""
        ...

    def caught_up(self) -> Set[int]:
        """Return the partitions of which all is polled, by an end looked up in the last seconds.

        Without one, no timeout of order expires.
        """
        return frozenset()

    def lag(self) -> Mapping[int, int]:
        """Return the number of records of each partition not polled yet, where known."""
        return {}

    def progress(self) -> float:
        """Return the share polled so far, 0 to 1; 0 if unknown."""
        ...

    def counters(self) -> Mapping[str, float]:
        """Return counters such as {"rebuilds": 2, "outage_seconds": 3.5}."""
        return {}

    def committed(self, positions: Mapping[int, Position]) -> None:
        """Record that a checkpoint holds everything before `positions`; never raises."""
        return

    def close(self) -> None:
        """Release all resources within a few seconds."""
        ...
