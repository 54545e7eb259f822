"""JSON lines: one object per line."""

from __future__ import annotations

import json
import math
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
    parser_block,
    refuse_tiny,
    undecodable,
)
from tgflow.streams.rows.row_batch import Fault
from tgflow.streams.rows.schema import UNSCALED, Columns, IdKind, Scale, listed
from tgflow.streams.rows.validate import (
    RowSchema,
    has_too_many_decimals,
    id_fault,
    number_fault,
    time_fault,
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
        """Return the keys in at least half of the first objects, or None without a line."""
        head = self.head()
        if not head:
            return None
        if not self._objects:
            fault = parse_object(head[0])[1]
            raise StreamError(self.first_place, *(fault or ("syntax", "no object")))
        counts = Counter(chain.from_iterable(self._objects))
        return [name for name, count in counts.items() if 2 * count >= len(self._objects)]

    def samples(self, columns: Columns) -> Sequence[Mapping[str, Any]]:
        """Return the objects among the first lines."""
        return self._objects

    def read_head(self) -> list[bytes]:
        """Read the lines that determine the keys and their types."""
        num_lines = 1 if self.is_growing else HEAD_LINES
        return head_of(self._path, num_lines, HEAD_BYTES, self._max_bytes)

    def parser(self, schema: RowSchema) -> Parser:
        """Return the parser of lines."""
        rows, columns, time = self._objects, schema.columns, schema.time
        usual = {name: usual_value(row.get(name) for row in rows) for name in columns.names}
        types = json_types(columns, schema.ids, time, usual)
        return json_parser(types, columns, time)

    @cached_property
    def _objects(self) -> list[dict[str, Any]]:
        return [value for value, fault in map(parse_object, self.head()) if fault is None]


def json_parser(types: Mapping[str, pa.DataType], columns: Columns, time: Scale) -> Parser:
    """Return the parser of lines; times are parsed as decimals, never as floats."""
    schema = pa.schema(list(types.items()))
    reading = pa.json.ReadOptions()
    parsing = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

    decimals = [name for name, kind in types.items() if pa.types.is_decimal(kind)]

    def is_tiny(line: Text) -> bool:
        row, fault = parse_object(line)
        return fault is not None or any(has_too_many_decimals(row.get(name)) for name in decimals)

    def parse(lines: Text, num_lines: int) -> pa.RecordBatch:
        _refuse_other_lines(lines, num_lines)
        refuse_tiny(lines, is_tiny)
        reading.block_size = parser_block(lines, num_lines)
        table = pa.json.read_json(pa.BufferReader(lines), reading, parsing)
        if len(table) != num_lines:
            raise pa.ArrowInvalid("not one object a line")
        batch = table.combine_chunks().to_batches()[0]
        batch.validate(full=True)  # strings may contain bytes that are not UTF-8
        return batch

    def explain(line: Text) -> Fault | None:
        return _fault(line, types, columns, time)

    return Parser(parse, explain, schema, listed(schema.names))


def json_types(
    columns: Columns, ids: IdKind, time: Scale, usual: Mapping[str, Any]
) -> dict[str, pa.DataType]:
    """Return the column types: features and ids as in `usual`, the others by column."""
    types = {}
    for name in columns.categorical:
        kind = type(usual.get(name))
        types[name] = {int: pa.int64(), bool: pa.bool_()}.get(kind, pa.string())
    for name in columns.numbers:
        is_list = isinstance(usual.get(name), list)
        types[name] = pa.list_(pa.float32()) if is_list else pa.float32()
    for name in (columns.src, columns.dst):
        is_number = ids == "int" or isinstance(usual.get(name), int)
        types[name] = pa.int64() if is_number else pa.string()
    types[columns.t] = time_type(time)
    for name in columns.single(int):
        number = pa.bool_() if isinstance(usual.get(name), bool) else time_type(UNSCALED)
        types[name] = pa.string() if name in columns.texts else number
    if columns.event_id:
        is_number = isinstance(usual.get(columns.event_id), int)
        types.setdefault(columns.event_id, pa.int64() if is_number else pa.string())
    return types


_CLASSES = {
    pa.string(): (str, "text as in the first rows"),
    pa.bool_(): (bool, "true or false as in the first rows"),
}
_EVENT_IDS = {pa.int64(): (int, "an integer"), pa.string(): (str, "a string")}
"""Python type and name in messages, by Arrow type, for columns other than times."""
_AFTER_OBJECT = re.compile(rb"\}[ \t\r]*[^ \t\r\n{},\]]")


def _refuse_other_lines(lines: Text, num_lines: int) -> None:
    """Raise `pa.ArrowInvalid` unless each line is, or may be, exactly one object.

    Arrow accepts whitespace between objects and line ends within them; any other text between
    objects, such as `null`, makes it read out of bounds.
    """
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
        value = json.loads(line.rstrip(b"\r\n"), parse_float=Decimal, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        what = f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at character {error.pos + 1}"
        return {}, ("syntax", f"{what}; write one object per line")
    except KeyError as error:
        return {}, ("schema", f"the key {shown(error.args[0])} is repeated; keep one")
    except (RecursionError, ValueError):
        text = "the JSON is nested too deeply, or has a number with thousands of digits"
        return {}, ("syntax", f"{text}; write one flat object per line")
    if not isinstance(value, dict):
        return {}, ("syntax", f"{shown(value)} is not an object; write one object per line")
    if b"\\u" in line and not _is_whole(value):
        return {}, ("encoding", "a string has half of a character; write whole ones")
    return value, None


def _is_whole(value: object) -> bool:
    """Return whether no string contains an unpaired surrogate."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return values


def _fault(
    line: Text, types: Mapping[str, pa.DataType], columns: Columns, time: Scale
) -> Fault | None:
    row, fault = parse_object(line)
    if fault is not None:
        return fault
    for name in (columns.src, columns.dst):
        value = row.get(name)
        if types[name] == pa.string() and value is not None and not isinstance(value, str):
            return "type", f"{name} is {shown(value)}, expected a string"
        if types[name] == pa.int64() and (fault := id_fault(name, _plain(value))):
            return fault
    if fault := time_fault(columns.t, row.get(columns.t), time):
        return fault
    for name in columns.single(int):
        kind, value = _CLASSES.get(types[name]), row.get(name)
        if kind is not None and value is not None:
            fault = _kind_fault(name, value, *kind)
        else:
            fault = number_fault(name, value, UNSCALED)
        if fault:
            return fault
    if columns.event_id and row.get(columns.event_id) is not None:
        kind = _EVENT_IDS.get(types[columns.event_id])
        if kind and (fault := _kind_fault(columns.event_id, row[columns.event_id], *kind)):
            return fault
    for name in columns.categorical:
        kind, value = (_EVENT_IDS | _CLASSES).get(types[name]), row.get(name)
        if kind and value is not None and (fault := _kind_fault(name, value, *kind)):
            return fault
    for name in columns.numbers:
        is_list = pa.types.is_list(types[name])
        if columns.fill_missing is not None and row.get(name) is None:
            continue
        value = _plain(row.get(name, 0))
        if not _is_number(value, is_list):
            expected = "a list of numbers" if is_list else "a number"
            return "type", f"{name} is {shown(value)}, expected {expected}"
        if any(map(math.isinf, value if isinstance(value, list) else [value])):
            return "inf", f"{name} is {shown(value)} in float32; features must be finite"
    return None


def _kind_fault(name: str, value: object, kind: type, expected: str) -> Fault | None:
    if isinstance(value, kind):
        return None
    return "type", f"{name} is {shown(_plain(value))}, expected {expected}"


def _plain(value: object) -> object:
    """Convert a parsed value for display in a message."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value


def _is_number(value: object, is_list: bool) -> bool:
    if is_list:
        return isinstance(value, list) and all(_is_number(v, False) for v in value)
    return isinstance(value, int | float) and not isinstance(value, bool)
