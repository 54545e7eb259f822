"""What every codec does: values of records to rows, good and bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tgflow.streams.rows.checks import Fault, Int64s
from tgflow.streams.rows.validate import RowSchema


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of some records, numbered from 0 over all of them; a record that is none is one row.

    Args:
        batches: All rows that could be decoded, in order; at least one batch, and together at
            least the columns of an event. Safe to touch, but not checked. Batches may differ in
            the types of their columns.
        num_rows: How many rows each record has, good and bad, int64.
        faults: What is wrong with the rows that could not be decoded, by number.
    """

    batches: Sequence[pa.RecordBatch]
    num_rows: Int64s
    faults: Mapping[int, Fault]


class Codec(Protocol):
    """A form of records."""

    schema: RowSchema
    """What the rows of `decode` must be to become events."""

    def decode(self, values: Sequence[bytes]) -> Decoded:
        """Return the rows of some records. What one gives does not depend on the others."""
        ...

    def raw(self, value: bytes, row: int) -> bytes:
        """Return one row of a record as it stands there, or if it is binary as JSON."""
        ...
