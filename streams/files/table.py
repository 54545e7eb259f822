"""Tables in memory, and what the binary formats share with them: typed columns in batches."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from tgflow.streams.errors import SourceCorrupt, SourceMismatch, SourceTruncated
from tgflow.streams.files.anchor import check_digest, check_size, digest, tail
from tgflow.streams.rows.row_batch import Origin, Position, RowBatch
from tgflow.streams.rows.schema import Columns
from tgflow.streams.rows.validate import RowSchema, validate

BATCH_ROWS = 1 << 15
"""Torch checks more at a time in several threads, which wait for one another on a busy machine."""
SAMPLES = 100


class ColumnarDecoder(ABC):
    """Typed columns, read in batches of at most `BATCH_ROWS` rows.

    Args:
        name: What messages call it.
        size: Its bytes, or its rows.
        names: Its columns.
        num_events: Its rows, or None if unknown.
    """

    bipartite = False

    def __init__(self, name: str, size: int, names: Sequence[str], num_events: int | None) -> None:
        self.name = name
        self.size = size
        self.num_events = num_events
        self._names = names
        self.first_place = f"{name}, row 0"
        self._num_read = 0

    @abstractmethod
    def batches(
        self, names: Sequence[str], num_rows: int, first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns `names` from row `first` on, at most `num_rows` rows at a time."""

    @abstractmethod
    def anchor(self) -> dict[str, int | str]:
        """Return what it is recognized by: its `size` and, of a file, its `sha256`."""

    @abstractmethod
    def check(self, start: Position) -> None:
        """Raise `SourceTruncated` or `SourceMismatch` if it is not what gave `start`."""

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return self._names

    def default_features(self) -> Sequence[str]:
        """Return no features: they are read when asked for."""
        return ()

    def notes(self) -> Sequence[str]:
        """Return what was taken for granted, in sentences: nothing."""
        return ()

    def samples(self, columns: Columns) -> Sequence[Mapping[str, Any]]:
        """Return some of the first rows, by column name, without those that cannot be read."""
        for batch in self.batches(columns.names, SAMPLES):
            if len(batch):
                rows = (_values(batch, row) for row in range(len(batch)))
                return [row for row, is_whole in rows if is_whole]
        return []

    def read(self, schema: RowSchema, start: Position | None) -> Iterator[RowBatch]:
        """Return the rows; what type a column has is judged when it is converted."""
        first = 0
        if start is not None:
            self.check(start)
            first = int(start["row"] or 0)
        return self._rows(schema, first)

    def _rows(self, schema: RowSchema, first: int) -> Iterator[RowBatch]:
        self._num_read = first
        anchor = self.anchor()
        for batch in self.batches(schema.columns.names, BATCH_ROWS, first):
            locate = partial(_origin, self.name, self._num_read, batch)
            self._num_read += len(batch)
            position: Position = {"row": self._num_read, **anchor}
            yield validate(batch, schema, locate=locate, position=position)

    def progress(self) -> float:
        """Return which share of the rows the latest `read` has yielded, 0 if that is unknown."""
        return min(1.0, self._num_read / self.num_events) if self.num_events else 0.0


class BinaryDecoder(ColumnarDecoder):
    """A file of typed columns.

    Args:
        path: The file.
        names: Its columns.
        num_events: Its rows, or None if unknown.
        may_grow: Whether rows can be appended to it.
    """

    def __init__(
        self, path: Path, names: Sequence[str], num_events: int | None, may_grow: bool
    ) -> None:
        super().__init__(str(path), path.stat().st_size, names, num_events)
        self._path = path
        self._may_grow = may_grow

    def anchor(self) -> dict[str, int | str]:
        """Return its size, and the digest of its end: of most formats its table of contents."""
        size = self._path.stat().st_size
        return {"size": size, "sha256": digest(tail(self._path, size))}

    def check(self, start: Position) -> None:
        """Raise `SourceTruncated` or `SourceMismatch` if it is not the file that gave `start`."""
        size, before = self._path.stat().st_size, int(start["size"] or 0)
        check_size(self.name, size, start)
        check_digest(self.name, tail(self._path, before), start, f"byte {before}")
        if size > before and not self._may_grow:
            text = f"it has {size} bytes, but had {before} when it was read; put the old file back"
            raise SourceMismatch(self.name, "schema", text)

    def damaged(self, num_read: int, error: Exception) -> SourceCorrupt:
        """Return the error of a file that cannot be read from row `num_read` on."""
        where = f"{self.name}, from row {num_read} on"
        text = f"the data is damaged ({error}); fetch the file again"
        return SourceCorrupt(where, "syntax", text)


class TableDecoder(ColumnarDecoder):
    """A table in memory.

    Args:
        table: The rows.
        features: The feature columns that are read if nobody names any.
    """

    def __init__(self, table: pa.Table, features: Sequence[str] = ()) -> None:
        super().__init__("table", len(table), table.schema.names, len(table))
        self._table = table
        self._features = features

    def default_features(self) -> Sequence[str]:
        """Return what was named when it was made."""
        return self._features

    def batches(
        self, names: Sequence[str], num_rows: int, first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield views of the table."""
        yield from self._table.select(list(names)).slice(first).to_batches(num_rows)

    def anchor(self) -> dict[str, int | str]:
        """Return its number of rows."""
        return {"size": len(self._table)}

    def check(self, start: Position) -> None:
        """Raise `SourceTruncated` if it has fewer rows than it had."""
        if len(self._table) < int(start["size"] or 0):
            text = f"it has {len(self._table)} rows, but had {start['size']} when it was read"
            raise SourceTruncated(self.name, "schema", f"{text}; pass the same table")


def _origin(name: str, first: int, batch: pa.RecordBatch, row: int) -> Origin:
    """Return where a row of a batch stands, of which the first is row `first`."""
    values, _ = _values(batch, row)
    return Origin({"file": name, "row": first + row}, json.dumps(values, default=str).encode())


def _values(batch: pa.RecordBatch, row: int) -> tuple[dict[str, Any], bool]:
    """Return the values of a row, None for those that cannot be read, and whether all can be."""
    values, is_whole = {}, True
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        value = column.slice(row, 1)
        try:
            value.validate(full=True)
            values[name] = value[0].as_py()
        except (pa.ArrowInvalid, ValueError, OverflowError):
            values[name], is_whole = None, False
    return values, is_whole


def as_table(data: Any) -> pa.Table | None:
    """Return `data` as a table if it is one: Arrow's, a data frame, PyG's, columns, or rows.

    A dict's columns may be NumPy arrays, torch tensors, Arrow arrays or lists; a 2-d one becomes
    a column of lists. A tuple has src, dst, t, and perhaps x. Rows are dicts, of which all are
    taken; lazy frames are computed.
    """
    if hasattr(data, "collect_schema") and hasattr(data, "collect"):
        data = data.collect()
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if all(isinstance(getattr(data, name, None), torch.Tensor) for name in ("src", "dst", "t")):
        data = _tensors_of(data)
    if isinstance(data, tuple) and len(data) in (3, 4) and not isinstance(data[0], Mapping):
        data = dict(zip(("src", "dst", "t", "x"), data, strict=False))
    if isinstance(data, Mapping):
        return pa.table({name: array_of(column) for name, column in data.items()})
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    return _table_of_rows(data) if isinstance(data, Iterable) else None


def _table_of_rows(rows: Iterable[Any]) -> pa.Table | None:
    """Return dicts, one a row, as a table of all their keys; None if they are no dicts."""
    found = [*rows]
    if not found or not all(isinstance(row, Mapping) for row in found):
        return None
    names = dict.fromkeys(chain.from_iterable(found))
    return pa.table({name: [row.get(name) for row in found] for name in names})


def _tensors_of(data: Any) -> dict[str, torch.Tensor]:
    """Return the columns of a `TemporalData` of PyTorch Geometric: src, dst, t, msg, ..."""
    columns = data.to_dict() if hasattr(data, "to_dict") else vars(data)
    num = len(data.src)
    return {
        name: x.detach().cpu()
        for name, x in columns.items()
        if isinstance(x, torch.Tensor) and x.dim() in (1, 2) and len(x) == num
    }


def array_of(column: Any) -> Any:
    """Return a column as Arrow has it; one of two dimensions as lists of its rows."""
    if isinstance(column, pa.Array | pa.ChunkedArray | list | tuple):
        return column
    values = np.asarray(column)
    if values.ndim != 2:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
