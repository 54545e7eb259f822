"""From Arrow columns of any suitable type to the columns of events, exactly or not at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.streams.checks import (
    INT64_MAX,
    Float32s,
    Int64s,
    first_invalid,
    refuse,
    refuse_nulls,
    refuse_wide,
)
from tgflow.streams.errors import RowError, shown
from tgflow.streams.features import feature_columns
from tgflow.streams.schema import UNSCALED, Columns, IdKind, Scale
from tgflow.streams.ticks import tick_column

AS_TEXT = "pass id_kind='string' to take ids as text"


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Events before their ids are mapped: `src` and `dst` are Arrow int64 or string arrays."""

    src: pa.Array
    dst: pa.Array
    t: Int64s
    label: Int64s | None
    x: Float32s | None

    def __len__(self) -> int:
        return len(self.t)

    def take(self, rows: slice | Int64s) -> EventColumns:
        """Return the events at `rows`, in that order."""
        index = pa.array(np.arange(len(self))[rows])
        return EventColumns(
            self.src.take(index),
            self.dst.take(index),
            self.t[rows],
            None if self.label is None else self.label[rows],
            None if self.x is None else self.x[rows],
        )


def event_columns(
    batch: pa.RecordBatch, columns: Columns, ids: IdKind, time: Scale, x_dim: int
) -> EventColumns:
    """Return the events of `batch`.

    Raises:
        RowError: At the first bad row of the first bad column, in the order src, dst, t, label,
            features.
    """
    label = columns.label
    return EventColumns(
        src=id_column(batch[columns.src], columns.src, ids),
        dst=id_column(batch[columns.dst], columns.dst, ids),
        t=tick_column(batch[columns.t], columns.t, time),
        label=tick_column(batch[label], label, UNSCALED) if label else None,
        x=feature_columns(batch, columns.features, x_dim) if columns.features else None,
    )


def id_column(array: pa.Array, name: str, kind: IdKind) -> pa.Array:
    """Return node ids as int64 of at least 0, or as strings that are not empty.

    Raises:
        RowError: At the first id that is neither.
    """
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    refuse_nulls(array, name)
    if pa.types.is_integer(array.type):
        return array.cast(pa.string()) if kind == "string" else _integer_ids(array, name)
    if not _is_string(array.type):
        raise RowError(0, "type", f"{name} is of type {array.type}; ids are integers or strings")
    if kind == "int" and len(array):
        raise RowError(0, "type", id_fault(name, array[0].as_py()) or AS_TEXT)
    return _string_ids(array, name)


def _integer_ids(array: pa.Array, name: str) -> pa.Array:
    def text(row: int) -> str:
        return id_fault(name, array[row].as_py()) or ""

    values = refuse_wide(array, "huge_id", text)
    refuse(values < 0, "negative_id", text)
    return pa.array(values)


def _string_ids(array: pa.Array, name: str) -> pa.Array:
    row = first_invalid(array)
    if row is not None:
        raise RowError(row, "encoding", f"{name} is not UTF-8; write the file as UTF-8")
    empty = pc.equal(pc.binary_length(array.cast(pa.large_string())), 0)
    refuse(empty.to_numpy(zero_copy_only=False), "type", lambda _: f"{name} is empty; {_BOTH}")
    return array.cast(pa.string())


def _is_string(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


_BOTH = "every event needs both its nodes"


def id_fault(name: str, value: object) -> str | None:
    """Return what is wrong with `value` as an integer id, None if nothing is."""
    if value is None or value == "":
        return f"{name} is empty; {_BOTH}"
    if not isinstance(value, int) or isinstance(value, bool):
        return f"{name} is {shown(value)}, expected an integer; write it as one, or {AS_TEXT}"
    if value < 0:
        return f"{name} is {value}; integer ids start at 0: {AS_TEXT}"
    if value > INT64_MAX:
        return f"{name} is {value}, beyond int64; {AS_TEXT}"
    return None
