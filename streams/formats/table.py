"""Tables in memory, and what the binary formats share with them: typed columns in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.streams.decoder import Rows
from tgflow.streams.schema import Columns, IdKind, Scale

BATCH_ROWS = 1 << 16


class ColumnarDecoder(ABC):
    """Typed columns, read in batches of at most `BATCH_ROWS` rows.

    Args:
        name: What messages call it.
        size: Its bytes, or its rows.
        schema: Its columns.
        num_events: Its rows, or None if unknown.
    """

    def __init__(self, name: str, size: int, schema: pa.Schema, num_events: int | None) -> None:
        self.name = name
        self.size = size
        self.num_events = num_events
        self._schema = schema
        self.first_place = f"{name}, row 0"
        self._num_read = 0

    @abstractmethod
    def batches(self, names: Sequence[str], num_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the columns `names` in batches of about `num_rows` rows."""

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return list(self._schema.names)

    def default_features(self) -> Sequence[str]:
        """Return no features: they are read when asked for."""
        return ()

    def first(self, columns: Columns) -> Mapping[str, Any] | None:
        """Return row 0, by column name, or None if there is no row."""
        for batch in self.batches(columns.names, 1):
            if len(batch):
                row: Mapping[str, Any] = batch.slice(0, 1).to_pylist()[0]
                return row
        return None

    def read(self, columns: Columns, ids: IdKind, time: Scale) -> Iterator[Rows]:
        """Yield the rows; what type a column has is judged when it is converted."""
        self._num_read = 0
        for batch in self.batches(columns.names, BATCH_ROWS):
            for start in range(0, len(batch), BATCH_ROWS):
                rows = batch.slice(start, BATCH_ROWS)
                yield Rows(rows, self.name, self._num_read, "row")
                self._num_read += len(rows)

    def progress(self) -> float:
        """Return which share of the rows the latest `read` has yielded, 0 if that is unknown."""
        return min(1.0, self._num_read / self.num_events) if self.num_events else 0.0


class TableDecoder(ColumnarDecoder):
    """A table in memory.

    Args:
        table: The rows.
    """

    def __init__(self, table: pa.Table) -> None:
        super().__init__("table", len(table), table.schema, len(table))
        self._table = table

    def batches(self, names: Sequence[str], num_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield views of the table."""
        yield from self._table.select(list(names)).to_batches(num_rows)


def as_table(data: Any) -> pa.Table | None:
    """Return `data` as a table if it is one: Arrow's, a data frame, or a dict of columns.

    A dict's columns may be NumPy arrays, torch tensors, Arrow arrays or lists; a 2-d one becomes
    a column of lists.
    """
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        return pa.table({name: _array(column) for name, column in data.items()})
    return pa.table(data) if hasattr(data, "__arrow_c_stream__") else None


def _array(column: Any) -> Any:
    if isinstance(column, pa.Array | pa.ChunkedArray | list | tuple):
        return column
    values = np.asarray(column)
    if values.ndim != 2:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
