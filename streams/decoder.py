"""The one shape every format is decoded to, and what a format must offer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tgflow.streams.errors import RowFault, StreamError
from tgflow.streams.schema import Columns, IdKind, Scale


@dataclass(frozen=True, slots=True)
class Rows:
    """A run of rows of one file.

    Args:
        batch: The selected columns under their own names; any Arrow types.
        name: The file, as messages call it.
        first: Where the first row stands: its line (from 1) or its row (from 0).
        counts: What `first` counts, `"line"` or `"row"`.
    """

    batch: pa.RecordBatch
    name: str
    first: int
    counts: str

    def fault(self, fault: RowFault) -> StreamError:
        """Return the error that names the row of `fault` by its file and line or row."""
        where = f"{self.name}, {self.counts} {self.first + fault.row}"
        return StreamError(where, fault.code, fault.text)


class Decoder(Protocol):
    """One file, or one table, of one format."""

    name: str
    """What messages call it."""
    size: int
    """Bytes, or rows of a table: its weight in a progress bar."""
    num_events: int | None
    """Its events, or None where counting would mean reading it."""

    first_place: str
    """Where its first row stands, as `events.csv, line 2`."""

    def names(self) -> Sequence[str] | None:
        """Return the names of the columns, or None if it has neither rows nor names."""
        ...

    def default_features(self) -> Sequence[str]:
        """Return the feature columns of a stream that declares none."""
        ...

    def first(self, columns: Columns) -> Mapping[str, Any] | None:
        """Return the first row, by column name, or None if there is no row."""
        ...

    def read(self, columns: Columns, ids: IdKind, time: Scale) -> Iterator[Rows]:
        """Yield the rows in order, a bounded number of them at a time."""
        ...

    def progress(self) -> float:
        """Return which share of it the latest `read` has consumed, 0 to 1."""
        ...
