"""One record's fields, checked one by one: slow, and only for records that the fast way refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.streams.errors import shown
from tgflow.streams.rows.checks import Fault
from tgflow.streams.rows.columns import id_fault
from tgflow.streams.rows.schema import UNSCALED, Scale
from tgflow.streams.rows.ticks import number_fault
from tgflow.streams.rows.validate import RowSchema
from tgflow.units import INT64_MAX

MAX_FEATURE_DIGITS = 400
"""Digits of a feature beyond which it is no float in any case."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields that make an event, and their Arrow types.

    Args:
        form: What a row must be.
        event_id: The field that tells repeated events, or None.
    """

    form: RowSchema
    event_id: str | None = None

    @property
    def names(self) -> list[str]:
        """Their names, each once."""
        extra = [self.event_id] if self.event_id else []
        return list(dict.fromkeys([*self.form.columns.names, *extra]))

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column of integers, whole or not, text, or features."""
        columns = self.form.columns
        if name in (columns.src, columns.dst):
            return pa.int64() if self.form.ids == "int" else pa.string()
        if name in columns.features:
            width = self.form.widths[columns.features.index(name)]
            return pa.float32() if width == 1 else pa.list_(pa.float32(), width)
        return pa.string() if name == self.event_id else pa.int64()

    def row(self, fields: Mapping[str, Any]) -> pa.RecordBatch | Fault:
        """Return one record's row, or the first thing that is wrong with it.

        Args:
            fields: What the record holds; numbers with a point as `Decimal`.
        """
        for name in self.names:
            if name not in fields:
                return (
                    "schema",
                    f"there is no field {name!r} in the record; write it, or name another",
                )
        fault = self._fault(fields)
        if fault is not None:
            return fault
        try:
            return self._batch(fields)
        except UnicodeEncodeError:
            return "encoding", "an id holds half of a character; write whole ones"

    def _fault(self, fields: Mapping[str, Any]) -> Fault | None:
        form = self.form
        columns = form.columns
        for name in (columns.src, columns.dst):
            if fault := self._id_fault(name, fields[name]):
                return fault
        for column, scale in ((columns.t, form.time), (columns.label, UNSCALED)):
            if column and (fault := time_fault(column, fields[column], scale)):
                return fault
        for name, width in zip(columns.features, form.widths, strict=True):
            if fault := feature_fault(name, fields[name], width):
                return fault
        if self.event_id and not _is_event_id(fields[self.event_id]):
            text = f"{self.event_id} is {shown(fields[self.event_id])}, expected text or an integer"
            return "type", text
        return None

    def _id_fault(self, name: str, value: Any) -> Fault | None:
        if self.form.ids == "int":
            return id_fault(name, float(value) if isinstance(value, Decimal) else value)
        if value is None or value == "":
            return "null", f"{name} is empty; every event needs both its nodes"
        if not isinstance(value, str):
            return "type", f"{name} is {shown(value)}, expected text: ids are strings here"
        return None

    def _batch(self, fields: Mapping[str, Any]) -> pa.RecordBatch:
        arrays = [self._array(name, fields[name]) for name in self.names]
        return pa.RecordBatch.from_arrays(arrays, names=self.names)

    def _array(self, name: str, value: Any) -> pa.Array:
        kind = self.type_of(name)
        if name == self.event_id:
            return pa.array([str(value)], kind)
        if name == self.form.columns.t and isinstance(value, Decimal):
            return pa.array([value], fraction_type(self.form.time))
        if pa.types.is_integer(kind):
            return pa.array([int(value)], kind)
        if name in self.form.columns.features:
            with np.errstate(over="ignore"):
                values = [float(v) for v in value] if isinstance(value, list) else float(value)
                return pa.array([values], kind)
        return pa.array([value], kind)


def fraction_type(scale: Scale) -> pa.DataType:
    """Return the type of times with a fraction, which holds any int64 besides."""
    return pa.decimal128(38, scale.digits)


def time_fault(name: str, value: Any, scale: Scale) -> Fault | None:
    """Return what is wrong with a time or label of a record, where text is no number."""
    if isinstance(value, str | list | dict):
        expected = "a whole number" if scale is UNSCALED else f"a number of {scale.unit}"
        return "time_type", f"{name} is {shown(value)}, expected {expected}"
    fault = number_fault(name, value, scale)
    if fault is None and isinstance(value, int) and abs(value) > INT64_MAX:
        return "time_range", f"{name} is {value}, beyond int64"
    return fault


def feature_fault(name: str, value: Any, width: int) -> Fault | None:
    """Return what is wrong with a feature, or a list of them; whether it is finite comes later."""
    if value is None or (width == 1 and not isinstance(value, list)):
        return _number_fault(name, value)
    if not isinstance(value, list):
        return "type", f"{name} is {shown(value)}, expected a list of {width} numbers"
    if len(value) != width:
        return "width", f"{name} has {len(value)} values, expected {width}"
    for item in value:
        if fault := _number_fault(name, item):
            return fault
    return None


def _number_fault(name: str, value: Any) -> Fault | None:
    if value is None:
        return "null", f"{name} is missing; every event needs a value"
    if not _is_number(value):
        return "type", f"{name} is {shown(value)}, expected a number"
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return value.bit_length() < 1024  # float() refuses more
    return isinstance(value, Decimal | float)


def _is_event_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)
