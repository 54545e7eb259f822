"""From Arrow columns of any suitable type to the columns of events, exactly or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.streams.errors import shown
from tgflow.streams.rows.checks import (
    Fault,
    Float32s,
    Int64s,
    refuse,
    refuse_all,
    refuse_each,
    refuse_nulls,
    refuse_wide,
)
from tgflow.streams.rows.schema import IdKind
from tgflow.units import INT64_MAX

AS_TEXT = "pass id_kind='string' to take ids as text"


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Events before their ids are mapped: a field for each column, None for one that is missing.

    `src` and `dst` are Arrow int64 or string arrays. `event_id` is the id of each event as text, if
    the stream has one and it is kept. All methods apply to every field.
    """

    src: pa.Array
    dst: pa.Array
    t: Int64s
    label: Int64s | None
    x: Float32s | None
    event_id: pa.Array | None = None
    weight: Float32s | None = None

    def __len__(self) -> int:
        return len(self.t)

    def columns(self) -> dict[str, Any]:
        """Return the columns that are present, by name."""
        found = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: column for name, column in found if column is not None}

    def take(self, rows: slice | Int64s) -> EventColumns:
        """Return the events at `rows`, in that order; a slice with step 1 copies nothing."""
        return replace(self, **{n: taken(column, rows) for n, column in self.columns().items()})

    def keeping_ids(self, keep: bool) -> EventColumns:
        """Return the events with their ids, null where they are not known; or without any."""
        if keep == (self.event_id is not None):
            return self
        return replace(self, event_id=pa.nulls(len(self), pa.string()) if keep else None)

    @classmethod
    def concat(cls, parts: Sequence[EventColumns]) -> EventColumns:
        """Return at least one part, one after another; all have the same columns."""
        if len(parts) == 1:
            return parts[0]
        columns = [part.columns() for part in parts]
        return replace(parts[0], **{n: joined([c[n] for c in columns]) for n in columns[0]})


def taken(column: Any, rows: slice | Int64s) -> Any:
    """Return the values at `rows` of an Arrow or NumPy column."""
    if isinstance(column, np.ndarray) or isinstance(rows, slice):
        return column[rows]
    if pa.types.is_integer(column.type):  # Arrow releases the GIL: 1 ms beside a parsing thread
        return pa.array(column.to_numpy()[rows])
    return column.take(pa.array(rows))


def joined(parts: Sequence[Any]) -> Any:
    """Return Arrow or NumPy columns of one type as one column."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return pa.concat_arrays(parts)


def id_column(array: pa.Array, name: str, kind: IdKind, max_id: int) -> pa.Array:
    """Return node ids as int64 in `[0, max_id]`, or as strings that are not empty.

    Raises:
        BadRows: Where they are neither.
    """
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    refuse_nulls(array, name)
    if pa.types.is_integer(array.type):
        return array.cast(pa.string()) if kind == "string" else _integer_ids(array, name, max_id)
    if not is_text(array.type):
        text = f"{name} is of type {array.type}; ids are integers or strings"
        refuse_all(len(array), "type", text)
        return pa.array([], pa.int64() if kind == "int" else pa.string())
    return _no_integers(array, name) if kind == "int" else _string_ids(array, name)


def _integer_ids(array: pa.Array, name: str, max_id: int) -> pa.Array:
    def fault(row: int) -> Fault:
        return id_fault(name, array[row].as_py(), max_id) or ("type", name)

    values = refuse_wide(array, fault)
    refuse_each(values < 0, fault)
    if max_id < INT64_MAX:
        refuse_each(values > max_id, fault)
    return pa.array(values)


def _no_integers(array: pa.Array, name: str) -> pa.Array:
    """Refuse text where integers were asked for: a number in quotes is no integer."""
    every = np.ones(len(array), dtype=np.bool_)
    refuse_each(every, lambda row: id_fault(name, array[row].as_py(), INT64_MAX) or ("type", name))
    return pa.array([], pa.int64())


def _string_ids(array: pa.Array, name: str) -> pa.Array:
    empty = pc.equal(pc.binary_length(array.cast(pa.large_string())), 0)
    refuse(empty.to_numpy(zero_copy_only=False), "null", lambda _: f"{name} is empty; {_BOTH}")
    return array.cast(pa.string())


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type holds strings."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, also of a dictionary's."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


_BOTH = "every event needs both its nodes"


def id_fault(name: str, value: Any, max_id: int = INT64_MAX) -> Fault | None:
    """Return what is wrong with `value` as an integer id, None if nothing is."""
    if value is None or value == "":
        return "null", f"{name} is empty; {_BOTH}"
    if not isinstance(value, int) or isinstance(value, bool):
        text = f"{name} is {shown(value)}, expected an integer; write it as one, or {AS_TEXT}"
        return "type", text
    if value < 0:
        return "negative_id", f"{name} is {shown(value)}; integer ids start at 0: {AS_TEXT}"
    if value > INT64_MAX:
        return "huge_id", f"{name} is {shown(value)}, beyond int64; {AS_TEXT}"
    if value > max_id:
        return "huge_id", f"{name} is {value}, larger than max_node_id={max_id}"
    return None
