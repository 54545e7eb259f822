"""DyGLib data sets: `ml_NAME.csv`, with event features in `ml_NAME.npy` beside it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.streams.errors import StreamError
from tgflow.streams.files.csv import CsvDecoder, as_integer, csv_parser, split_values, typed_id
from tgflow.streams.files.text import BLOCK_BYTES, COMPRESSION, Parser
from tgflow.streams.rows.row_batch import Fault
from tgflow.streams.rows.schema import Columns
from tgflow.streams.rows.validate import RowSchema

HEADER = ["", "u", "i", "ts", "label", "idx"]
FEATURES, INDEX = "x", "idx"
_NAMES = ("row", "src", "dst", "t", "label", INDEX)
_log = logging.getLogger("tgflow.streams")

Rows = npt.NDArray[np.floating[Any]]


class DyglibDecoder(CsvDecoder):
    """Decode an event list with columns row, src, dst, t, label, idx, and x from the `.npy` file.

    Row `idx` of `ml_NAME.npy` holds an event's features; row 0 is padding. They are read unless
    other features are requested, or all are zero, as DyGLib writes for data sets without features.
    """

    def __init__(
        self, path: Path, max_bytes: int | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        super().__init__(path, max_bytes, block_bytes)
        plain = path.with_suffix("") if path.suffix in COMPRESSION else path
        self._rows_of_x = _features(plain.with_suffix(".npy"))

    def names(self) -> Sequence[str]:
        """Return row, src, dst, t, label and idx, and x if there are features."""
        self.refuse_first_row()
        return _NAMES if self._rows_of_x is None else (*_NAMES, FEATURES)

    def default_features(self) -> Sequence[str]:
        return () if self._rows_of_x is None else (FEATURES,)

    def samples(self, columns: Columns) -> Sequence[Mapping[str, Any]]:
        found, rows = [], self._rows_of_x
        for line in self.head()[1:]:
            values = split_values(line, ",")
            if len(values) != len(_NAMES) or None in map(as_integer, values[1:3]):
                continue
            row: dict[str, Any] = dict(zip(_NAMES, values, strict=True))
            row |= {"src": typed_id(values[1]), "dst": typed_id(values[2])}
            if rows is not None and (number := _row_number(row[INDEX], len(rows))) is not None:
                row[FEATURES] = rows[number].tolist()
            found.append(row)
        return found

    def parser(self, schema: RowSchema) -> Parser:
        rows, columns = self._rows_of_x, schema.columns
        if rows is None or FEATURES not in columns.features:
            return csv_parser(_NAMES, ",", schema, self.quotes)
        if columns.event_id not in (None, INDEX):
            text = f"event_id={columns.event_id!r}: beside features only {INDEX!r} can be one"
            raise StreamError(self.name, "schema", text)
        others = tuple(name for name in columns.features if name != FEATURES)
        own = replace(columns, features=others, event_id=INDEX)
        inner = csv_parser(_NAMES, ",", replace(schema, columns=own), self.quotes)
        place = inner.schema.get_field_index(INDEX)

        def row(line: bytes) -> tuple[list[str], Fault | None]:
            values, fault = inner.row(line)
            if fault is not None:
                return values, fault
            if (number := _row_number(index := values[place], len(rows))) is None:
                text = f"idx is {index.strip()!r:.40}, expected 0 to {len(rows) - 1}"
                return values, ("range", text)
            values[place] = str(number)
            return values, None

        def finish(batch: pa.RecordBatch) -> pa.RecordBatch:
            index = pc.cast(batch.column(INDEX), pa.int64()).to_numpy()
            if len(index) and not (index.min() >= 0 and index.max() < len(rows)):
                raise pa.ArrowInvalid("an idx without features")
            x = rows[index].astype(np.float32)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), rows.shape[1])
            named = dict(zip(batch.schema.names, batch.columns, strict=True)) | {FEATURES: lists}
            if columns.event_id is None:
                del named[INDEX]
            return pa.RecordBatch.from_pydict(named)

        ways = [lambda *lines, way=way: finish(way(*lines)) for way in inner.ways]
        return replace(inner, ways=ways, row=row, finish=finish)


def _features(path: Path) -> Rows | None:
    """Memory-map the feature rows; None if there are none, or all are 0."""
    if not path.exists():
        return None
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise StreamError(str(path), "syntax", f"not a file of numbers: {error!s:.100}") from None
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.dtype.kind != "f":
        text = "features must be a float matrix with one row per event"
        raise StreamError(str(path), "type", text)
    if not any(part.any() for part in np.array_split(rows, len(rows) // (1 << 14) + 1)):
        _log.warning("%s holds zeros alone: the events are read without features", path)
        return None
    return rows


def _row_number(index: str, num_rows: int) -> int | None:
    """Return the feature row of an event; None if it is out of range."""
    number = as_integer(index)
    return number if number is not None and 0 <= number < num_rows else None
