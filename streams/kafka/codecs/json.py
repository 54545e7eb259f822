"""JSON: one object a record."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.streams.errors import shown
from tgflow.streams.kafka.codecs.codec import BadRecordsError, Parsed, parse_searching
from tgflow.streams.kafka.codecs.fields import Fields
from tgflow.streams.rows.checks import Fault

MAX_DEPTH = 8
MAX_DIGITS = 4000
_BOM = b"\xef\xbb\xbf"


class JsonCodec:
    """Objects with the fields of an event; of a whole poll when all are good.

    Args:
        fields: The fields.
        reject_unknown: Whether other keys make a record bad.
    """

    def __init__(self, fields: Fields, reject_unknown: bool) -> None:
        self._fields, self._reject_unknown = fields, reject_unknown
        self._loads = _fastest_loads()
        columns = fields.form.columns
        widths = dict(zip(columns.features, fields.form.widths, strict=True))
        self._widths = [widths.get(name) for name in fields.names]
        self._num_lists = sum(width is not None and width > 1 for width in self._widths)

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """Return one row for each record that is one."""
        return parse_searching(values, self._all, self._one)

    def raw(self, value: bytes, row: int) -> bytes:
        """Return the record itself."""
        return value

    def _all(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Parse records that are all plain: flat objects, integers where integers must be.

        Counting the colons, braces and brackets of all of them finds any key that is there twice
        and anything nested: with neither there are exactly as many as parsed keys and lists.
        """
        try:
            objects = list(map(self._loads, values))
            columns = [list(map(itemgetter(name), objects)) for name in self._fields.names]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise BadRecordsError from error
        num_keys = sum(map(len, objects))
        text = b"".join(values)
        plain = text.count(b":") == num_keys and text.count(b"{") == len(values)
        plain = plain and text.count(b"[") == self._num_lists * len(values)
        if self._reject_unknown:
            plain = plain and num_keys == len(self._widths) * len(values)
        if not plain:
            raise BadRecordsError
        return self._batch(columns)

    def _batch(self, columns: Sequence[list[Any]]) -> pa.RecordBatch:
        names = self._fields.names
        each = zip(names, self._widths, columns, strict=True)
        arrays = [self._array(name, width, column) for name, width, column in each]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _array(self, name: str, width: int | None, column: Sequence[Any]) -> pa.Array:
        kind = self._fields.type_of(name)
        if name == self._fields.event_id:
            _require(column, {str, int})
            return pa.array([str(value) for value in column], kind)
        if width is not None and width > 1:
            return _lists(column, width)
        if width == 1:
            _require(column, {float, int})
        else:
            _require(column, {str} if pa.types.is_string(kind) else {int})
        return _array(column, kind)

    def _one(self, value: bytes) -> pa.RecordBatch | Fault:
        """Parse one record with care: every digit of a number is kept, every key seen."""
        found = parse_object(value)
        if isinstance(found, tuple):
            return found
        unknown = sorted(found.keys() - set(self._fields.names)) if self._reject_unknown else []
        if unknown:
            return "schema", f"the key {shown(unknown[0])} is none of {self._fields.names}"
        return self._fields.row(found)


def parse_object(value: bytes) -> dict[str, Any] | Fault:
    """Return the JSON object of one record, numbers with a point as `Decimal`, or its fault."""
    if value.startswith(_BOM):
        return "encoding", "the record starts with a byte order mark; write plain UTF-8"
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return "encoding", f"byte {error.start} (0x{value[error.start]:02x}) is not UTF-8"
    if _depth(text) > MAX_DEPTH:
        return "syntax", f"the JSON is nested more than {MAX_DEPTH} deep; write one flat object"
    try:
        found = json.loads(text, parse_float=_decimal, parse_int=_int, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        what = f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at character {error.pos}"
        return "syntax", f"{what}; write one object a record"
    except KeyError as error:
        return "schema", f"the key {shown(error.args[0])} is there twice; keep one"
    except (RecursionError, ValueError):
        return "syntax", "the JSON holds a number of thousands of digits"
    if not isinstance(found, dict):
        return "syntax", f"{shown(found)} is no object; write one object a record"
    return found


def _depth(text: str) -> int:
    """Return how deep brackets nest; those in strings count too, up to the allowed depth."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
        elif char == '"':
            in_string = True
    return deepest


def _decimal(text: str) -> Decimal:
    if len(text) > MAX_DIGITS:
        raise ValueError("too many digits")
    return Decimal(text)


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("too many digits")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return values


def _require(column: Sequence[Any], kinds: set[type]) -> None:
    if not set(map(type, column)) <= kinds:
        raise BadRecordsError


def _lists(column: Sequence[Any], width: int) -> pa.Array:
    """Return lists of numbers, all of one width."""
    _require(column, {list})
    if not set(map(len, column)) <= {width}:
        raise BadRecordsError
    flat = list(chain.from_iterable(column))
    _require(flat, {float, int})
    return pa.FixedSizeListArray.from_arrays(_array(flat, pa.float32()), width)


def _array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_string(kind):
            return pa.array(column, kind)
        with np.errstate(over="ignore"):
            return pa.array(np.array(column, dtype=kind.to_pandas_dtype()))
    except (OverflowError, pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise BadRecordsError from error


def _fastest_loads() -> Callable[[bytes], Any]:
    try:
        import orjson
    except ImportError:
        return _strict_loads
    loads: Callable[[bytes], Any] = orjson.loads
    return loads


def _strict_loads(value: bytes) -> Any:
    """Parse as orjson does: no constants that JSON lacks, no integers of thousands of digits."""
    return json.loads(value.decode(), parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
