r"""Comma- or tab-separated text with a header line, in one dialect.

Rows are those of RFC 4180, but for what follows; Python's `csv` with `strict=True` splits lines
into the same values:

* A row is a line, which ends by `\n` or `\r\n`; a quoted value holds neither, nor a lone `\r`.
* Values between quotes may hold the delimiter, and quotes that are doubled. Nothing stands between
  the closing quote and the next delimiter. A quote that opens within a value is a character like
  any other: `5"x` is `5"x`.
* A blank line is no row, and a row has as many values as the header. Both are UTF-8; a byte order
  mark may stand at the beginning of the file. NUL is a character like any other.
* Spaces and tabs around a number do not count; those around text do. Numbers are decimal: an id
  and a label `-?[0-9]+`, a time and a feature perhaps with a point and an exponent. Text like
  `nan`, `inf`, `1_000` and `0x10` is no number.

What a row is depends on its own line alone.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tgflow.streams.errors import StreamError, shown
from tgflow.streams.files.blocks import BLOCK_BYTES, BOM, Text, TextBlock
from tgflow.streams.files.lines import Parser, Verdicts, parser_block, refuse_tiny
from tgflow.streams.files.quotes import enclose_values
from tgflow.streams.files.screen import screen
from tgflow.streams.files.text import TextDecoder, undecodable
from tgflow.streams.rows.checks import Fault
from tgflow.streams.rows.columns import id_fault
from tgflow.streams.rows.limits import Checks
from tgflow.streams.rows.schema import UNSCALED, Columns, IdKind, Scale, listed
from tgflow.streams.rows.ticks import (
    has_too_many_decimals,
    may_be_tiny,
    number_fault,
    time_fault,
    time_type,
)

_ROW = re.compile(r"Row #(\d{1,9}):")
MISSING = ("", "nan", "NaN", "NA", "N/A", "null", "NULL", "None")
"""Texts of features that are missing, where those are filled."""
_INTEGER = re.compile(r"\s*-?\d{1,99}\s*", re.ASCII)  # int() refuses thousands of digits


class CsvDecoder(TextDecoder):
    """A file of delimited values; the first line names the columns.

    Args:
        path: The file, compressed if its name says so.
        delimiter: What stands between two values.
        max_bytes: As for `TextDecoder`.
        block_bytes: As for `TextDecoder`.
    """

    num_header_lines = 1

    def __init__(
        self,
        path: Path,
        delimiter: str = ",",
        max_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(path, max_bytes, block_bytes)
        self._delimiter = delimiter

    def names(self) -> Sequence[str]:
        """Return the names in the header line.

        Raises:
            StreamError: If the file has no line, or its header is no text.
        """
        head = self.head()
        if not head:
            raise StreamError(self.name, "schema", "the file is empty, expected a header line")
        return self.names_in(head[0], 1)

    def names_in(self, line: bytes, number: int) -> list[str]:
        """Return the names in the header, which is line `number`; raises `StreamError` as names."""
        where = f"{self.name}, line {number}"
        fault = undecodable(line)
        if fault is not None:
            raise StreamError(where, *fault)
        names = split_values(line, self._delimiter)
        if not names:
            what, _ = _quote_fault(line, self._delimiter)
            text = f"{what} in the header {shown(line.decode())}; mend it"
            raise StreamError(where, "syntax", text)
        return [name.strip() for name in names]

    def samples(self, columns: Columns) -> Sequence[Mapping[str, Any]]:
        """Return the values of some of the first lines; ids that look like numbers as numbers."""
        names, rows = self.names(), []
        for line in self.head()[self.num_header_lines :]:
            is_row = not line.startswith(self.comment_starts) and undecodable(line) is None
            values = split_values(line, self._delimiter) if is_row else []
            if len(values) == len(names):
                rows.append({n: _typed(v) for n, v in zip(names, values, strict=True)})
        return rows

    def parser(self, columns: Columns, ids: IdKind, time: Scale, checks: Checks) -> Parser:
        """Return how lines become typed columns."""
        return csv_parser(self.names(), self._delimiter, columns, ids, time)


def csv_parser(
    names: Sequence[str], delimiter: str, columns: Columns, ids: IdKind, time: Scale
) -> Parser:
    """Return how lines become typed columns: times decimal, so that they are never floats.

    Args:
        names: The columns of a line, in order.
        delimiter: What stands between two values, one byte.
        columns: Which of them make an event.
        ids: What the node ids are.
        time: From the times to ticks.
    """
    names = list(names)
    reading = pa.csv.ReadOptions(column_names=names)
    parsing = pa.csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False)
    types = _types(columns, ids, time)
    fills = columns.fill_missing is not None
    converting = _strict(types, MISSING if fills else ())
    both = [columns.src, columns.dst]
    as_text = _strict(dict.fromkeys(both, pa.string()))

    def table(lines: Text, options: pa.csv.ConvertOptions) -> pa.RecordBatch:
        table = pa.csv.read_csv(pa.BufferReader(lines), reading, parsing, options)
        return table.combine_chunks().to_batches()[0]

    decimals = [names.index(name) for name, kind in types.items() if pa.types.is_decimal(kind)]

    def is_tiny(line: Text) -> bool:
        values = split_values(line, delimiter)
        return len(values) < len(names) or any(has_too_many_decimals(values[i]) for i in decimals)

    def parse(block: TextBlock) -> pa.RecordBatch:
        lines, num_lines = block.data, block.num_lines
        if b"\r" in lines and lines.count(b"\r") != lines.count(b"\r\n"):
            raise pa.ArrowInvalid("a line end of another kind")
        if b"\xef" in lines and (lines.startswith(BOM) or b"\n" + BOM in lines):
            raise pa.ArrowInvalid("a byte order mark")  # Arrow skips one where it begins
        if b'"' in lines and not enclose_values(lines, delimiter):
            raise pa.ArrowInvalid("text after a closing quote")  # Arrow adds it to the value
        refuse_tiny(lines, is_tiny)
        reading.block_size = parser_block(len(lines), num_lines)
        batch = table(lines, converting)
        if len(batch) != num_lines:
            raise pa.ArrowInvalid("a value holds a line end")
        if ids == "int" and (b"x" in lines or b"X" in lines):
            _refuse_hex(table(lines, as_text))
        return batch

    def explain(line: Text) -> Fault | None:
        return _fault(line, names, delimiter, columns, ids, time)

    def is_hopeless(line: Text) -> bool:
        num_values = line.count(delimiter.encode()) + 1
        return num_values != len(names) and b'"' not in line

    def suspect(block: TextBlock) -> int | None:
        if may_be_tiny(block.data):
            return None
        one_by_one = pa.csv.ReadOptions(
            column_names=names, use_threads=False, block_size=len(block.data) + 1
        )
        try:
            pa.csv.read_csv(pa.BufferReader(block.data), one_by_one, parsing, converting)
        except pa.ArrowInvalid as error:
            found = _ROW.search(str(error))  # counted from 1, and only without threads
            return int(found[1]) - 1 if found and int(found[1]) <= block.num_lines else None
        return None

    def screened(block: TextBlock) -> Verdicts | None:
        filled = columns.features if fills else ()
        return screen(block, names, delimiter, {n: k for n, k in types.items() if n not in filled})

    schema = pa.schema(list(types.items()))
    return Parser(parse, explain, is_hopeless, screened, suspect, schema, listed(names))


def refuse_first_row(name: str, line: bytes, delimiter: str) -> None:
    """Raise `StreamError` if the line where a format has its header begins with two integers."""
    values = split_values(line, delimiter)
    if len(values) > 1 and all(as_integer(value) is not None for value in values[:2]):
        text = f"the first line is a row, and no header: {shown(line.decode())}"
        way_out = "put the header above it, or read it with format='csv' columns='src,dst,t'"
        raise StreamError(f"{name}, line 1", "schema", f"{text}; {way_out}")


def split_values(line: Text, delimiter: str) -> list[str]:
    """Return the values of a line; none if it is blank or no UTF-8, or its quotes are wrong."""
    try:
        return next(csv.reader([line.decode()], delimiter=delimiter, strict=True))
    except (csv.Error, UnicodeDecodeError):
        return []


def as_integer(value: str) -> int | None:
    """Return the integer that a value is, spaces and tabs around it or not; None if it is none."""
    return int(value) if _INTEGER.fullmatch(value) else None


def _quote_fault(line: Text, delimiter: str) -> tuple[str, str]:
    """Return what is wrong with the quotes of a line that has no values, and the way out."""
    if enclose_values(line + b'"', delimiter):
        return "a quote is not closed", "values hold no line ends here"
    return "text follows a closing quote", "write quotes within quotes twice"


def _fault(
    line: Text,
    names: Sequence[str],
    delimiter: str,
    columns: Columns,
    ids: IdKind,
    time: Scale,
) -> Fault | None:
    fault = undecodable(line)
    if fault is not None:
        return fault
    line_end = b"\r\n" if line.endswith(b"\r\n") else b"\n"
    if b"\r" in line.removesuffix(line_end):
        return "syntax", r"a \r stands within the line; end lines by \n or \r\n"
    values = split_values(line.removesuffix(line_end), delimiter)
    if not values:
        what, way_out = _quote_fault(line.removesuffix(line_end), delimiter)
        return "syntax", f"{what} on its line; {way_out}"
    if len(values) != len(names):
        return "schema", _wrong_width(line, len(values), names)
    row = dict(zip(names, values, strict=True))
    for name in (columns.src, columns.dst) if ids == "int" else ():
        value = row[name]
        number = as_integer(value)
        if fault := id_fault(name, value if number is None else number):
            return fault
    if fault := time_fault(columns.t, row[columns.t], time):
        return fault
    label = None if columns.has_classes else columns.label
    if label and (fault := number_fault(label, row[label], UNSCALED)):
        return fault
    for name in columns.numbers:
        is_filled = columns.fill_missing is not None and row[name] in MISSING
        if not (is_filled or _is_number(row[name])):
            return "type", f"{name} is {shown(row[name])}, expected a number"
    return None


def _wrong_width(line: Text, count: int, names: Sequence[str]) -> str:
    text = f"{count} values, expected {len(names)} ({listed(names)})"
    if count < len(names) and not line.endswith(b"\n"):
        return f"{text}; the file ends within this line: fetch it again, or remove the line"
    return f"{text}; mend or remove the line"


def _types(columns: Columns, ids: IdKind, time: Scale) -> dict[str, pa.DataType]:
    types = dict.fromkeys(columns.numbers, pa.float32())
    types |= dict.fromkeys([columns.src, columns.dst], pa.int64() if ids == "int" else pa.string())
    types[columns.t] = time_type(time)
    if columns.label:
        types[columns.label] = pa.string() if columns.has_classes else time_type(UNSCALED)
    if columns.event_id:
        types.setdefault(columns.event_id, pa.string())
    return types


def _strict(types: Mapping[str, pa.DataType], missing: Sequence[str] = ()) -> pa.csv.ConvertOptions:
    """Return options under which nothing means "missing" but some texts for numbers."""
    return pa.csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=[*missing],
        strings_can_be_null=False,
    )


def _refuse_hex(batch: pa.RecordBatch) -> None:
    """Raise `pa.ArrowInvalid` if an id is hexadecimal, which Arrow would read as a number."""
    for column in batch.columns:
        if pc.any(pc.match_substring_regex(column, r"^\s*0[xX]")).as_py():
            raise pa.ArrowInvalid("a hexadecimal id")


def _typed(value: str) -> int | float | str:
    number = as_integer(value)
    if number is not None:
        return number
    return float(value) if _is_number(value) else value


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return "_" not in value
