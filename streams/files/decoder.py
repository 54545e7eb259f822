"""The one shape every format is decoded to, and what a format must offer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tgflow.streams.errors import RowFault
from tgflow.streams.rows.checks import Checks, Int64s
from tgflow.streams.rows.row_batch import Origin, Position
from tgflow.streams.rows.schema import Columns, IdKind, Scale, Tabular


class Places(Protocol):
    """Where the rows of a run stand, looked up only where someone asks."""

    def where(self, row: int) -> str:
        """Return the place of a row for a message, as `events.csv, line 812`."""
        ...

    def origin(self, row: int) -> Origin:
        """Return the place of a row and its bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """A run of rows of one file.

    Args:
        batch: Those that could be decoded: the selected columns under their own names; any types.
        index: Of each of them its number in the run, increasing; None if all were decoded.
        faults: What is wrong with the others, by number.
        num_rows: How many rows the run has.
        places: Where they stand.
        position: Where the file goes on after them.
    """

    batch: pa.RecordBatch
    index: Int64s | None
    faults: Sequence[RowFault]
    num_rows: int
    places: Places
    position: Position


class Decoder(Tabular, Protocol):
    """One file, or one table, of one format."""

    size: int
    """Bytes, or rows of a table: its weight in a progress bar."""
    num_events: int | None
    """Its rows, or None where counting would mean reading it."""

    first_place: str
    """Where its first row stands, as `events.csv, line 2`."""

    def samples(self, columns: Columns) -> Sequence[Mapping[str, Any]]:
        """Return some of the first rows, by column name, without those that cannot be read."""
        ...

    def read(
        self, columns: Columns, ids: IdKind, time: Scale, checks: Checks, start: Position | None
    ) -> Iterator[Rows]:
        """Return the rows in order, from `start` on, a bounded number of them at a time.

        Raises:
            SourceTruncated: If the file ends before `start`.
            SourceMismatch: If it is not the file that was read up to `start`.
            SourceCorrupt: If it is damaged; also later.
        """
        ...

    def progress(self) -> float:
        """Return which share of it the latest `read` has consumed, 0 to 1."""
        ...
