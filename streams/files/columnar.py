"""Typed columns in batches: Parquet, Arrow IPC and Feather, NumPy's and torch's arrays, tables."""

from __future__ import annotations

import json
import pickle
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from tgflow.streams.errors import SourceCorrupt, SourceMismatch, SourceTruncated, StreamError
from tgflow.streams.files.decoder import (
    SAMPLES,
    Decoder,
    check_digest,
    check_size,
    digest,
    tail,
)
from tgflow.streams.rows.row_batch import Origin, Position, RowBatch
from tgflow.streams.rows.schema import Columns
from tgflow.streams.rows.validate import RowSchema, validate

BATCH_ROWS = 1 << 15
"""Torch checks more at a time in several threads, which wait for one another on a busy machine."""
MAX_BYTES = 1 << 30
"""Bytes that a compressed file's array may have whatever its size; beyond, `MAX_RATIO` counts."""
MAX_RATIO = 200
_ARROW_MAGIC = b"ARROW1"


class ColumnarDecoder(Decoder):
    """Typed columns, read in batches of at most `BATCH_ROWS` rows."""

    def __init__(self, name: str, size: int, names: Sequence[str], num_events: int | None) -> None:
        super().__init__(name, size, num_events, f"{name}, row 0")
        self._names = names
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


def _origin(name: str, first: int, batch: pa.RecordBatch, row: int) -> Origin:
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


class TableDecoder(ColumnarDecoder):
    """A table in memory."""

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


class BinaryDecoder(ColumnarDecoder):
    """A file of typed columns."""

    def __init__(
        self, path: Path, names: Sequence[str], num_events: int | None, may_grow: bool = False
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


class ParquetDecoder(BinaryDecoder):
    """A Parquet file, read row group after row group."""

    def __init__(self, path: Path) -> None:
        try:
            with pq.ParquetFile(path) as file:
                names, num_rows = file.schema_arrow.names, file.metadata.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise StreamError(str(path), "syntax", f"no readable Parquet file: {error}") from error
        super().__init__(path, names, num_rows)

    def batches(
        self, names: Sequence[str], num_rows: int, first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows; damage found on the way is `SourceCorrupt`."""
        num_read, group, skip = first, 0, first
        try:
            with pq.ParquetFile(self._path) as file:
                about = file.metadata
                while group < about.num_row_groups and skip >= about.row_group(group).num_rows:
                    skip -= about.row_group(group).num_rows
                    group += 1
                groups = list(range(group, about.num_row_groups))
                for batch in file.iter_batches(num_rows, row_groups=groups, columns=list(names)):
                    if skip >= len(batch):
                        skip -= len(batch)
                        continue
                    yield batch.slice(skip)
                    num_read += len(batch) - skip
                    skip = 0
        except (pa.ArrowException, OSError) as error:
            raise self.damaged(num_read, error) from error


class ArrowDecoder(BinaryDecoder):
    """An Arrow IPC file (Feather version 2 is the same), mapped into memory, or an IPC stream."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._is_file = file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        try:
            with self._reader() as reader:
                names = reader.schema.names
                num_rows = reader.count_rows() if self._is_file else None
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise StreamError(str(path), "syntax", f"no readable Arrow file: {error}") from error
        super().__init__(path, names, num_rows, may_grow=not self._is_file)

    def batches(
        self, names: Sequence[str], num_rows: int, first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows; damage found on the way is `SourceCorrupt`."""
        num_read = 0
        try:
            with self._reader() as reader:
                stored = reader
                if self._is_file:
                    stored = map(reader.get_batch, range(reader.num_record_batches))
                for batch in stored:
                    skip = min(max(first - num_read, 0), len(batch))
                    wanted = batch.select(list(names))
                    for start in range(skip, len(batch), num_rows):
                        yield wanted.slice(start, num_rows)
                    num_read += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise self.damaged(num_read, error) from error

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        with pa.memory_map(str(self._path)) as file:
            yield pa.ipc.open_file(file) if self._is_file else pa.ipc.open_stream(file)


class ArraysDecoder(BinaryDecoder):
    """Named arrays of one length: of one dimension, or of two, whose rows are lists."""

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, Sequence[int]],
        load: Callable[[Sequence[str]], Mapping[str, Any]],
    ) -> None:
        columns = {name: shape for name, shape in shapes.items() if len(shape) in (1, 2)}
        lengths = {shape[0] for shape in columns.values()}
        if len(lengths) > 1:
            text = ", ".join(f"{name} {list(shape)}" for name, shape in columns.items())
            raise StreamError(str(path), "schema", f"its arrays differ in length: {text:.200}")
        super().__init__(path, list(columns), next(iter(lengths), 0))
        self._load = load

    def batches(
        self, names: Sequence[str], num_rows: int, first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows; damage found on the way is `SourceCorrupt`."""
        try:
            columns = self._load(names)
        except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
            raise self.damaged(first, error) from error
        for start in range(first, self.num_events or 0, num_rows):
            part = {name: array_of(x[start : start + num_rows]) for name, x in columns.items()}
            yield pa.RecordBatch.from_pydict(part)


def npz_decoder(path: Path) -> ArraysDecoder:
    """Open a file of `numpy.savez`; arrays of objects, which would be unpickled, are refused."""
    try:
        with zipfile.ZipFile(path) as file:
            shapes = {
                info.filename.removesuffix(".npy"): _shape(file, info)
                for info in file.infolist()
                if info.filename.endswith(".npy")
            }
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        text = f"no readable .npz file: {error!s:.100}"
        raise StreamError(str(path), "syntax", text) from None

    def load(names: Sequence[str]) -> Mapping[str, Any]:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}

    return ArraysDecoder(path, shapes, load)


def _shape(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[int, ...]:
    """Return an array's shape by its header; `ValueError` if it holds objects, or lies."""
    if info.file_size > max(MAX_BYTES, MAX_RATIO * info.compress_size):
        raise ValueError(f"{info.filename} would unpack to {info.file_size:,} bytes")
    read = {(1, 0): np.lib.format.read_array_header_1_0}
    with file.open(info) as member:
        version = np.lib.format.read_magic(member)
        shape, _, dtype = read.get(version, np.lib.format.read_array_header_2_0)(member)
    if dtype.hasobject:
        raise ValueError(f"{info.filename} holds Python objects, which are not unpickled")
    if int(np.prod(shape, dtype=object)) * dtype.itemsize > info.file_size:
        raise ValueError(f"{info.filename} is shorter than its header says")
    return tuple(shape)


def tensors_decoder(path: Path) -> ArraysDecoder:
    """Open a dict of tensors that `torch.save` wrote, such as `TemporalData.to_dict()`.

    It is read with `weights_only=True`, so that nothing in it is run; a `TemporalData` that was
    saved as it is names its class, and is refused.
    """
    way_out = "save a dict of tensors: torch.save(data.to_dict(), path), or pass the object itself"
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        first = str(error).strip().partition("\n")[0]
        text = f"torch cannot load it safely ({first:.100}); {way_out}"
        raise StreamError(str(path), "syntax", text) from None
    if not isinstance(found, dict):
        text = f"it holds a {type(found).__name__}; {way_out}"
        raise StreamError(str(path), "syntax", text)
    tensors = {str(name): x for name, x in found.items() if isinstance(x, torch.Tensor)}
    shapes = {name: x.shape for name, x in tensors.items()}
    return ArraysDecoder(
        path, shapes, lambda names: {name: tensors[name].numpy() for name in names}
    )


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
        columns = data.to_dict() if hasattr(data, "to_dict") else vars(data)
        num = len(data.src)  # a `TemporalData` of PyTorch Geometric: src, dst, t, msg, ...
        data = {
            name: x.detach().cpu()
            for name, x in columns.items()
            if isinstance(x, torch.Tensor) and x.dim() in (1, 2) and len(x) == num
        }
    if isinstance(data, tuple) and len(data) in (3, 4) and not isinstance(data[0], Mapping):
        data = dict(zip(("src", "dst", "t", "x"), data, strict=False))
    if isinstance(data, Mapping):
        return pa.table({name: array_of(column) for name, column in data.items()})
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    rows = [*data] if isinstance(data, Iterable) else []
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        return None
    names = dict.fromkeys(chain.from_iterable(rows))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def array_of(column: Any) -> Any:
    """Return a column as Arrow has it; one of two dimensions as lists of its rows."""
    if isinstance(column, pa.Array | pa.ChunkedArray | list | tuple):
        return column
    values = np.asarray(column)
    if values.ndim != 2:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
