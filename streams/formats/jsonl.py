"""JSON lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.json

from tgflow.streams.blocks import count_lines, parser_block
from tgflow.streams.columns import id_fault
from tgflow.streams.errors import StreamError, shown
from tgflow.streams.formats.text import Explain, Parse, TextDecoder, undecodable
from tgflow.streams.schema import UNSCALED, Columns, IdKind, Scale
from tgflow.streams.ticks import decimal_type, number_fault


class JsonlDecoder(TextDecoder):
    """A file of JSON objects; the keys of the first one name the columns.

    Args:
        path: The file, compressed if its name says so.
    """

    def names(self) -> Sequence[str] | None:
        """Return the keys of the first line, or None if there is no line.

        Raises:
            StreamError: If the first line is no JSON object.
        """
        first = self._first_object()
        return None if first is None else list(first)

    def first(self, columns: Columns) -> Mapping[str, Any] | None:
        """Return the object of line 1, or None if there is no line."""
        return self._first_object()

    def parser(self, columns: Columns, ids: IdKind, time: Scale) -> tuple[Parse, Explain]:
        """Return how lines become typed columns: times decimal, so that they are never floats."""
        types = _types(columns, ids, time, self._first_object() or {})
        reading = pa.json.ReadOptions()
        parsing = pa.json.ParseOptions(
            explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"
        )

        def parse(lines: bytes) -> pa.RecordBatch:
            num_lines = count_lines(lines)
            reading.block_size = parser_block(len(lines), num_lines)
            table = pa.json.read_json(pa.BufferReader(lines), reading, parsing)
            if len(table) != num_lines:
                raise pa.ArrowInvalid("not one object a line")
            batch = table.combine_chunks().to_batches()[0]
            batch.validate(full=True)  # strings may hold bytes that are not UTF-8
            return batch

        return parse, lambda line: _fault(line, types, columns, time)

    def _first_object(self) -> dict[str, Any] | None:
        head = self._file.head(1)
        if not head:
            return None
        value, fault = _object(head[0])
        if fault is not None:
            raise StreamError(self.first_place, *fault)
        return value


def _types(
    columns: Columns, ids: IdKind, time: Scale, first: Mapping[str, Any]
) -> dict[str, pa.DataType]:
    types = {}
    for name in columns.features:
        is_list = isinstance(first.get(name), list)
        types[name] = pa.list_(pa.float32()) if is_list else pa.float32()
    for name in (columns.src, columns.dst):
        is_number = ids == "int" or isinstance(first.get(name), int)
        types[name] = pa.int64() if is_number else pa.string()
    types[columns.t] = decimal_type(time)
    if columns.label:
        types[columns.label] = decimal_type(UNSCALED)
    return types


def _object(line: bytes) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """Return the object on a line, or what is wrong with the line."""
    if fault := undecodable(line):
        return {}, fault
    try:
        value = json.loads(line.rstrip(b"\r\n"), parse_float=Decimal, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        what = f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at character {error.pos + 1}"
        return {}, ("syntax", f"{what}; write one object a line")
    except KeyError as error:
        return {}, ("schema", f"the key {shown(error.args[0])} is there twice; keep one")
    except (RecursionError, ValueError):
        text = "the JSON is nested too deep, or holds a number of thousands of digits"
        return {}, ("syntax", f"{text}; write one flat object a line")
    if not isinstance(value, dict):
        return {}, ("syntax", f"{shown(value)} is no object; write one object a line")
    return value, None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return values


def _fault(
    line: bytes, types: Mapping[str, pa.DataType], columns: Columns, time: Scale
) -> tuple[str, str]:
    row, fault = _object(line)
    if fault is not None:
        return fault
    for name in (columns.src, columns.dst):
        value = row.get(name)
        if types[name] == pa.string() and value is not None and not isinstance(value, str):
            return "type", f"{name} is {shown(value)}, expected a string as in the first line"
        if types[name] == pa.int64() and (fault := id_fault(name, _plain(value))):
            return fault
    for column, scale in ((columns.t, time), (columns.label, UNSCALED)):
        if column and (fault := number_fault(column, row.get(column), scale)):
            return fault
    for name in columns.features:
        expected = "a list of numbers" if pa.types.is_list(types[name]) else "a number"
        value = _plain(row.get(name, 0))
        if not _is_number(value, expected == "a list of numbers"):
            return "type", f"{name} is {shown(value)}, expected {expected}"
    return "syntax", f"the line is no event: {shown(line.decode())}"


def _plain(value: object) -> object:
    """Return a parsed value as a message shows it."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value


def _is_number(value: object, is_list: bool) -> bool:
    if is_list:
        return isinstance(value, list) and all(_is_number(v, False) for v in value)
    return isinstance(value, int | float) and not isinstance(value, bool)
