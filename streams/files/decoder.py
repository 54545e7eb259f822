"""What a format must offer to be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from tgflow.streams.rows.row_batch import Position, RowBatch
from tgflow.streams.rows.schema import Columns, Tabular
from tgflow.streams.rows.validate import RowSchema


class Decoder(Tabular, Protocol):
    """One file, or one table, of one format."""

    size: int
    """Bytes, or rows of a table: its weight in a progress bar."""
    num_events: int | None
    """Its rows, or None where counting would mean reading it."""

    bipartite: bool
    """Whether it says that sources and destinations are counted apart."""

    first_place: str
    """Where its first row stands, as `events.csv, line 2`."""

    def notes(self) -> Sequence[str]:
        """Return what was taken for granted about it, in sentences."""
        ...

    def samples(self, columns: Columns) -> Sequence[Mapping[str, Any]]:
        """Return some of the first rows, by column name, without those that cannot be read."""
        ...

    def read(self, schema: RowSchema, start: Position | None) -> Iterator[RowBatch]:
        """Return the rows in order, from `start` on, a bounded number of them at a time.

        Positions lack the file, which the reader adds.

        Raises:
            SourceTruncated: If the file ends before `start`.
            SourceMismatch: If it is not the file that was read up to `start`.
            SourceCorrupt: If it is damaged; also later.
        """
        ...

    def progress(self) -> float:
        """Return which share of it the latest `read` has consumed, 0 to 1."""
        ...
