"""Rows between decoder and ingestion: a batch of one partition, each row with its location."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tgflow.streams.errors import RowFault
from tgflow.streams.rows.checks import Int64s
from tgflow.streams.rows.columns import EventColumns

Position: TypeAlias = dict[str, int | float | str | None]
"""Where a partition resumes, as its source writes it: plain values that JSON can hold."""

Location: TypeAlias = Mapping[str, int | str]
"""Where a row stood, for a person: {"topic", "partition", "offset", "row"} or {"file", "byte"}."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a row came from.

    Args:
        place: Its location.
        raw: Its bytes as they were; of a row in a binary table, the row as JSON.
    """

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
    """A row that was rejected.

    Args:
        index: Its number in its batch.
        code: Why, one of the codes in `tgflow.streams.errors`.
        text: What was wrong and what arrived.
        origin: Where it came from.
    """

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

    Rows are numbered from 0 within the batch, good and bad ones alike.

    Args:
        events: The good rows.
        index: Of each good row its number, int64, increasing; None if all are good.
        faults: What is wrong with each of the others, by number.
        num_rows: How many rows there are.
        locate: Returns where a row came from, by number; slow, for messages and dead letters.
        position: Where the partition resumes after these rows.
        event_ids: Of each good row an id by which duplicates are found, a 64-bit hash as int64, or
            None.
    """

    events: EventColumns
    index: Int64s | None = None
    faults: Sequence[RowFault] = ()
    num_rows: int = 0
    locate: Callable[[int], Origin] = nowhere
    position: Position = field(default_factory=dict)
    event_ids: Int64s | None = None

    def origin(self, i: int) -> Origin:
        """Return where good row `i` came from."""
        return self.locate(i if self.index is None else int(self.index[i]))

    def bad(self) -> list[BadRow]:
        """Return the bad rows with their origins."""
        return [BadRow(f.row, f.code, f.text, self.locate(f.row)) for f in self.faults]


@dataclass(frozen=True, slots=True)
class PolledRows:
    """What a poll brought of one partition.

    Records that are no rows, as Kafka's tombstones, are not numbered among the rows.

    Args:
        partition: The partition.
        rows: Its next rows.
        counts: What else was met on the way, such as {"tombstone": 2}; not rows.
        gaps: What was skipped just before, `[begin, end)` in the source's own numbers.
    """

    partition: int
    rows: RowBatch
    counts: Mapping[str, int] = field(default_factory=dict)
    gaps: Sequence[tuple[int, int]] = ()
