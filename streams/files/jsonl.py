"""JSON lines: one object per line."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.json

from tgflow.streams.errors import StreamError, shown
from tgflow.streams.files.text import (
    Parser,
    Text,
    TextDecoder,
    head_of,
    is_unicode,
    parser_block,
    refuse_tiny,
    undecodable,
)
from tgflow.streams.rows.row_batch import Fault
from tgflow.streams.rows.schema import UNSCALED, Columns
from tgflow.streams.rows.validate import (
    RowSchema,
    column_types,
    has_too_many_decimals,
    text_of,
    time_type,
    usual_value,
)

HEAD_LINES, HEAD_BYTES = 1000, 8 << 20
"""Lines read to determine the keys and their types, and about how many bytes of them."""


class JsonlDecoder(TextDecoder):
    """Decode JSON objects, one per line (RFC 8259); the keys are the columns.

    The keys are those of at least half of the first 1,000 rows; the majority decides whether a
    feature is a number or a list, and its width. Numbers are JSON's; `NaN` and `Infinity` parse but
    are rejected as features. `true` and `"7"` are not numbers; an integer has neither point nor
    exponent, except in a time, relation or label (`2.0`, `1e3`). A repeated key makes a line bad.
    """

    def names(self) -> Sequence[str] | None:
        if not (head := self.head()):
            return None
        if not self._objects:
            fault = parse_object(head[0])[1]
            raise StreamError(self.first_place, *(fault or ("syntax", "no object")))
        counts = Counter(chain.from_iterable(self._objects))
        return [name for name, count in counts.items() if 2 * count >= len(self._objects)]

    def samples(self, columns: Columns) -> Sequence[Mapping[str, Any]]:
        return self._objects

    def read_head(self) -> list[bytes]:
        num_lines = 1 if self.is_growing else HEAD_LINES
        return head_of(self._path, num_lines, HEAD_BYTES, self._max_bytes)

    def parser(self, schema: RowSchema) -> Parser:
        rows, names = self._objects, schema.columns.names
        usual = {name: usual_value(row.get(name) for row in rows) for name in names}
        return json_parser(schema, usual)

    @cached_property
    def _objects(self) -> list[dict[str, Any]]:
        return [value for value, fault in map(parse_object, self.head()) if fault is None]


def json_parser(schema: RowSchema, usual: Mapping[str, Any]) -> Parser:
    """Return the parser of lines with `usual` values; times are decimals, never floats.

    Where the values have other types, those of the first line are tried, and then texts.
    """
    types = json_types(schema, usual)
    lists = {name for name, kind in types.items() if pa.types.is_list(kind)}
    text = {name: pa.list_(pa.string()) if name in lists else pa.string() for name in types}
    current = types

    def table(lines: Text, num_lines: int, types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
        decimals = [name for name, kind in types.items() if pa.types.is_decimal(kind)]

        def is_tiny(line: Text) -> bool:
            row, fault = parse_object(line)
            return fault is not None or any(has_too_many_decimals(row.get(n)) for n in decimals)

        refuse_tiny(lines, is_tiny)
        batch = pa.json.read_json(
            pa.BufferReader(lines),
            pa.json.ReadOptions(block_size=parser_block(lines, num_lines)),
            pa.json.ParseOptions(
                explicit_schema=pa.schema(types), unexpected_field_behavior="ignore"
            ),
        ).combine_chunks()
        if len(batch) != num_lines:
            raise pa.ArrowInvalid("not one object a line")
        [batch] = batch.to_batches()
        batch.validate(full=True)  # strings may contain bytes that are not UTF-8
        return batch

    def typed(lines: Text, num_lines: int) -> pa.RecordBatch:
        nonlocal current
        _refuse_other_lines(lines, num_lines)
        try:
            return table(lines, num_lines, current)
        except pa.ArrowInvalid:
            first, fault = parse_object(lines.lstrip(b" \t").partition(b"\n")[0])
            found = json_types(schema, {n: [] for n in lists} | first)
            if fault or found == current or {n for n in found if found[n] in _LISTS} != lists:
                raise
            batch = table(lines, num_lines, found)
            current = found
            return batch

    def row(line: bytes) -> tuple[list[Any], Fault | None]:
        found, fault = parse_object(line)
        return [text_of(found.get(name)) for name in types], fault or _misfit(found, types)

    return Parser((typed,), row, pa.schema(text))


_LISTS = [pa.list_(pa.float32())]


def _misfit(row: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> Fault | None:
    """Return the fault of a list or an object in place of a value, or the reverse."""
    for name, kind in types.items():
        value = row.get(name)
        items = value if isinstance(value, list) else [value]
        is_list = isinstance(value, list) or value is None
        if is_list < pa.types.is_list(kind) or any(isinstance(x, list | dict) for x in items):
            return "type", f"{name} is {shown(_plain(value))}, expected a list of numbers"
        if isinstance(value, list) and not pa.types.is_list(kind):
            return "type", f"{name} is {shown(_plain(value))}, expected one value"
    return None


def json_types(schema: RowSchema, usual: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """Return the column types: as in `usual`, or those of numbers that the columns hold."""
    types, columns = column_types(schema), schema.columns
    ends = columns.src, columns.dst
    for name in types:
        value = usual.get(name)
        if isinstance(value, str):
            types[name] = pa.string()
        elif isinstance(value, bool):
            types[name] = types[name] if name in (*ends, *columns.times) else pa.bool_()
        elif isinstance(value, int) and types[name] == pa.string():
            exact = *columns.times, *columns.single(int)
            types[name] = time_type(UNSCALED) if name in exact else pa.int64()
        elif isinstance(value, list) and name in columns.numbers:
            types[name] = _LISTS[0]
    return types


_AFTER_OBJECT = re.compile(rb"\}[ \t\r]*[^ \t\r\n{},\]]")


def _refuse_other_lines(lines: Text, num_lines: int) -> None:
    """Raise `pa.ArrowInvalid` unless each line is, or may be, exactly one object."""
    # any text but whitespace between objects, such as `null`, makes Arrow read out of bounds
    if not lines.lstrip(b" \t").startswith(b"{"):
        raise pa.ArrowInvalid("no object")
    if num_lines > 1 and lines.count(b"}\n{") + lines.count(b"}\r\n{") != num_lines - 1:
        raise pa.ArrowInvalid("not one object a line")
    if _AFTER_OBJECT.search(lines) and any(parse_object(line)[1] for line in lines.splitlines()):
        raise pa.ArrowInvalid("something that is no object")


def parse_object(line: Text) -> tuple[dict[str, Any], Fault | None]:
    """Parse the object on a line; return it, or the fault of the line."""
    if fault := undecodable(line):
        return {}, fault
    try:
        value = json.loads(
            line.rstrip(b"\r\n").decode(), parse_float=Decimal, object_pairs_hook=_unique
        )
    except json.JSONDecodeError as error:
        what = f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at character {error.pos + 1}"
        return {}, ("syntax", f"{what}; write one object per event")
    except KeyError as error:
        return {}, ("schema", f"the key {shown(error.args[0])} is repeated; keep one")
    except (RecursionError, ValueError):
        text = "the JSON is nested too deeply, or has a number with thousands of digits"
        return {}, ("syntax", f"{text}; write one flat object per event")
    if not isinstance(value, dict):
        return {}, ("syntax", f"{shown(value)} is not an object; write one object per event")
    if b"\\u" in line and not is_unicode(json.dumps(value, ensure_ascii=False, default=str)):
        return {}, ("encoding", "a string has half of a character; write whole ones")
    return value, None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return values


def _plain(value: object) -> object:
    """Convert a parsed value for display in a message."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value
