"""What every codec does: values of records to rows, good and bad."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa

from tgflow.streams.rows.checks import Fault, Int64s


@dataclass(frozen=True, slots=True)
class Parsed:
    """Rows of some records, numbered from 0 over all of them; a record that is none is one row.

    Args:
        batches: All rows that could be read, in order, with the columns of an event; safe to
            touch, but not checked. Batches may differ in the types of their columns.
        num_rows: How many rows each record has, good and bad, int64.
        faults: What is wrong with the rows that could not be read, by number.
    """

    batches: Sequence[pa.RecordBatch]
    num_rows: Int64s
    faults: Mapping[int, Fault]


class Codec(Protocol):
    """A form of records."""

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """Return the rows of some records. What one gives does not depend on the others."""
        ...

    def raw(self, value: bytes, row: int) -> bytes:
        """Return one row of a record as it stands there, or if it is binary as JSON."""
        ...


class BadRecordsError(Exception):
    """Some of the records at hand are bad; which ones is told by parsing fewer at a time."""


ParseAll = Callable[[Sequence[bytes]], pa.RecordBatch]
ParseOne = Callable[[bytes], pa.RecordBatch | Fault]

_SPLIT = 8


def parse_searching(values: Sequence[bytes], fast: ParseAll, careful: ParseOne) -> Parsed:
    """Parse records of one row each all at once, and where some are bad, ever fewer at a time.

    Args:
        values: The records.
        fast: Parses many records at once, or raises `BadRecordsError`.
        careful: Parses one record that `fast` refuses, or says what is wrong with it.
    """
    batches: list[pa.RecordBatch] = []
    faults: dict[int, Fault] = {}
    todo = [(0, len(values))] if values else []
    while todo:
        start, stop = todo.pop()
        try:
            batches.append(fast(values[start:stop]))
        except BadRecordsError:
            if stop - start > 1:
                cuts = [*range(start, stop, max(1, (stop - start) // _SPLIT)), stop]
                todo += reversed(list(pairwise(cuts)))
                continue
            found = careful(values[start])
            if isinstance(found, tuple):
                faults[start] = found
            else:
                batches.append(found)
    return Parsed(joined(batches), np.ones(len(values), dtype=np.int64), faults)


def joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows in as few batches as their types allow."""
    groups = [list(group) for _, group in groupby(batches, lambda batch: batch.schema)]
    return [group[0] if len(group) == 1 else pa.concat_batches(group) for group in groups]
