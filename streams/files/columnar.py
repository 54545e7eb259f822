"""Decoders of columnar data: Parquet, Arrow IPC and Feather, tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from tgflow.graph.events import EventBatch
from tgflow.streams.errors import SourceCorrupt, SourceMismatch, SourceTruncated, StreamError
from tgflow.streams.files.decoder import SAMPLES, Decoder, check_digest, check_size, digest, tail
from tgflow.streams.rows.row_batch import Origin, Position, RowBatch
from tgflow.streams.rows.schema import Columns
from tgflow.streams.rows.validate import RowSchema, text_of, validate

BATCH_ROWS = 1 << 15
"""Elements torch checks at once; above this it uses threads, which are slow on a busy machine."""
_ARROW_MAGIC = b"ARROW1"


class ColumnarDecoder(Decoder):
    """Decode the typed columns of a file or an in-memory table in batches.

    Args:
        load: Yields the requested columns in batches of any size.
        may_grow: Whether rows may be appended to the file.
        features: Default feature columns, for streams that declare none.
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        num_events: int | None,
        load: Callable[[Sequence[str]], Iterable[pa.RecordBatch]],
        *,
        path: Path | None = None,
        may_grow: bool = False,
        features: Sequence[str] = (),
    ) -> None:
        size = (num_events or 0) if path is None else path.stat().st_size
        super().__init__(name, size, num_events, f"{name}, row 0")
        self._names, self._load, self._features = names, load, features
        self._path, self._may_grow = path, may_grow
        self._num_read = 0

    def names(self) -> Sequence[str]:
        return self._names

    def default_features(self) -> Sequence[str]:
        return self._features

    def batches(
        self, names: Sequence[str], num_rows: int, first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns `names` from row `first` on, at most `num_rows` rows at a time."""
        done = 0
        try:
            for found in self._load(names):
                is_run = pa.types.is_run_end_encoded
                columns = [pc.run_end_decode(x) if is_run(x.type) else x for x in found.columns]
                batch = pa.RecordBatch.from_arrays(columns, found.schema.names)
                for start in range(min(max(first - done, 0), len(batch)), len(batch), num_rows):
                    yield batch.slice(start, num_rows)
                done += len(batch)
        except StreamError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            where, text = f"{self.name}, from row {done} on", f"the data is damaged ({error})"
            raise SourceCorrupt(where, "syntax", f"{text}; fetch the file again") from error

    def samples(self, columns: Columns) -> Sequence[Mapping[str, Any]]:
        for batch in self.batches(columns.names, SAMPLES):
            rows = (_values(batch, row) for row in range(len(batch)))
            return [row for row, is_whole in rows if is_whole]
        return []

    def read(self, schema: RowSchema, start: Position | None) -> Iterator[RowBatch]:
        if start is not None:
            self._check(start)
        return self._rows(schema, 0 if start is None else int(start["row"] or 0))

    def progress(self) -> float:
        return min(1.0, self._num_read / self.num_events) if self.num_events else 0.0

    def _rows(self, schema: RowSchema, first: int) -> Iterator[RowBatch]:
        self._num_read = first
        anchor: Position = {"size": self.size}
        if self._path is not None:  # most formats keep their metadata at the end of the file
            size = self._path.stat().st_size
            anchor = {"size": size, "sha256": digest(tail(self._path, size))}
        for batch in self.batches(schema.columns.names, BATCH_ROWS, first):
            locate = partial(self._origin, batch, self._num_read)
            self._num_read += len(batch)
            position: Position = {"row": self._num_read, **anchor}
            yield validate(batch, schema, locate=locate, position=position)

    def _origin(self, batch: pa.RecordBatch, first: int, row: int) -> Origin:
        raw = json.dumps(_values(batch, row)[0], default=str).encode()
        return Origin({"file": self.name, "row": first + row}, raw)

    def _check(self, start: Position) -> None:
        before = int(start["size"] or 0)
        if self._path is None:
            if self.size < before:
                text = f"it has {self.size} rows, but had {before} when it was read"
                raise SourceTruncated(self.name, "schema", f"{text}; pass the same table")
            return
        size = self._path.stat().st_size
        check_size(self.name, size, start)
        check_digest(self.name, tail(self._path, before), start, f"byte {before}")
        if size > before and not self._may_grow:
            text = f"it has {size} bytes, but had {before} when it was read; put the old file back"
            raise SourceMismatch(self.name, "schema", text)


def _values(batch: pa.RecordBatch, row: int) -> tuple[dict[str, Any], bool]:
    """Return the values of a row (None for unreadable ones), and whether all are readable."""
    values, is_whole = {}, True
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        value = column.slice(row, 1)
        try:
            value.validate(full=True)
            values[name] = value[0].as_py()
        except (pa.ArrowInvalid, ValueError, OverflowError):
            values[name], is_whole = None, False
    return values, is_whole


def table_decoder(table: pa.Table, features: Sequence[str] = ()) -> ColumnarDecoder:
    """Open an in-memory table."""

    def load(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from table.select([*names]).to_batches()

    return ColumnarDecoder("table", table.schema.names, len(table), load, features=features)


@contextmanager
def _opening(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise StreamError(str(path), "syntax", f"not a readable {kind} file: {error}") from error


def parquet_decoder(path: Path) -> ColumnarDecoder:
    """Open a Parquet file."""

    def load(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            yield from file.iter_batches(BATCH_ROWS, columns=list(names))

    with _opening(path, "Parquet"), path.open("rb") as opened, pq.ParquetFile(opened) as file:
        names, num_rows = file.schema_arrow.names, file.metadata.num_rows
    return ColumnarDecoder(str(path), names, num_rows, load, path=path)


def arrow_decoder(path: Path) -> ColumnarDecoder:
    """Open an Arrow IPC file (or Feather version 2) or stream, memory-mapped."""
    with path.open("rb") as file:
        is_file = file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC

    @contextmanager
    def reading() -> Iterator[Any]:
        with pa.memory_map(str(path)) as file:
            yield pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)

    def load(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with reading() as reader:
            stored = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
            for batch in stored:
                yield batch.select(list(names))

    with _opening(path, "Arrow"), reading() as reader:
        names, num_rows = reader.schema.names, reader.count_rows() if is_file else None
    return ColumnarDecoder(str(path), names, num_rows, load, path=path, may_grow=not is_file)


def as_table(data: Any) -> pa.Table | None:
    """Convert `data` to a table if it is one: Arrow, a data frame, PyG's, columns, or rows.

    A dict's columns may be NumPy arrays, torch tensors, Arrow arrays or lists; 2-d columns become
    columns of lists. A tuple holds src, dst, t, and optionally x. Rows are dicts, all of which are
    read; lazy frames are computed. Returns None for any other type.
    """
    if hasattr(data, "collect_schema") and hasattr(data, "collect"):
        data = data.collect()
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, EventBatch):
        return None
    if all(isinstance(getattr(data, name, None), torch.Tensor) for name in ("src", "dst", "t")):
        columns = data.to_dict() if hasattr(data, "to_dict") else vars(data)
        num = len(data.src)  # a PyTorch Geometric `TemporalData`: src, dst, t, msg, ...
        data = {
            name: x.detach().cpu()
            for name, x in columns.items()
            if isinstance(x, torch.Tensor) and x.dim() in (1, 2) and len(x) == num
        }
    if isinstance(data, tuple) and len(data) in (3, 4) and not isinstance(data[0], Mapping):
        data = dict(zip(("src", "dst", "t", "x"), data, strict=False))
    if isinstance(data, Mapping):
        return _table_of(data)
    if hasattr(data, "__arrow_c_stream__"):
        try:
            return pa.table(data)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # a column of several types
            return _table_of({name: data[name].tolist() for name in data.columns})
    rows = [*data] if isinstance(data, Iterable) else []
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        return None
    names = dict.fromkeys(chain.from_iterable(rows))
    return _table_of({name: [row.get(name) for row in rows] for name in names})


def _table_of(columns: Mapping[str, Any]) -> pa.Table:
    arrays = {name: array_of(column) for name, column in columns.items()}
    if len({*map(len, arrays.values())}) > 1:
        sizes = ", ".join(f"{name} has {len(each)} rows" for name, each in arrays.items())
        raise StreamError("table", "schema", f"its columns differ in length: {sizes:.200}")
    return pa.table(arrays)


def array_of(column: Any) -> Any:
    """Convert a column to an Arrow array; a 2-d column becomes an array of lists.

    Values of several types become texts, which are read as the values that they are the texts of.
    """
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column
    values = column if isinstance(column, list | tuple) else np.asarray(column)
    if isinstance(values, list | tuple) or values.ndim != 2:
        try:
            return pa.array(values, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            gone = [x is None or (isinstance(x, float) and math.isnan(x)) for x in values]
            return pa.array(map(str, map(text_of, values)), pa.string(), mask=np.array(gone))
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
