"""CSV: one line a record, or several; the columns are the fields in their order."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from tgflow.streams.kafka.codecs.codec import BadRecordsError, Parsed, parse_searching
from tgflow.streams.kafka.codecs.fields import Fields
from tgflow.streams.rows.checks import Fault
from tgflow.streams.rows.schema import UNSCALED, listed
from tgflow.streams.rows.ticks import decimal_type

_INTEGER = re.compile(r"-?\d{1,4000}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf(inity)?)", re.IGNORECASE | re.ASCII)
_HEX = re.compile(rb"(?:^|[,\n])\s*[+-]?0[xX]")


class CsvCodec:
    """Lines of values; of a whole poll at once when all are good.

    Args:
        fields: The fields.
    """

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._names = _columns(fields)
        self._reading = pa.csv.ReadOptions(column_names=self._names, use_threads=False)
        self._parsing = pa.csv.ParseOptions(quote_char=False, ignore_empty_lines=False)
        types = {name: self._type(name) for name in _columns(fields)}
        self._converting = pa.csv.ConvertOptions(
            column_types=types, include_columns=list(types), null_values=[]
        )
        self._lists = _list_columns(fields)

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """Return one row for each line."""
        whole = b"\n".join(values)
        if whole.count(b"\n") == len(values) - 1:
            return parse_searching(values, self._all, self._one)
        lines = [_lines(value) for value in values]
        flat = [line for record in lines for line in record]
        parsed = parse_searching(flat, self._all, self._one)
        counts = np.fromiter(map(len, lines), dtype=np.int64, count=len(lines))
        return Parsed(parsed.batches, counts, parsed.faults)

    def raw(self, value: bytes, row: int) -> bytes:
        """Return the line."""
        return _lines(value)[row]

    def _type(self, name: str) -> pa.DataType:
        columns, time = self._fields.form.columns, self._fields.form.time
        if name == columns.t:
            return decimal_type(time)
        if name == columns.label:
            return decimal_type(UNSCALED)
        return self._fields.type_of(name) if name in self._fields.names else pa.float32()

    def _all(self, lines: Sequence[bytes]) -> pa.RecordBatch:
        """Parse lines without quotes, so that none can reach into the next one."""
        text = b"\n".join(lines)
        if b'"' in text or b"\r" in text or b"\x00" in text or (b"x" in text and _HEX.search(text)):
            raise BadRecordsError
        self._reading.block_size = len(text) + 1
        try:
            table = pa.csv.read_csv(
                pa.py_buffer(text), self._reading, self._parsing, self._converting
            )
            if len(table) != len(lines):
                raise BadRecordsError
            [batch] = table.combine_chunks().to_batches()
            batch.validate(full=True)
        except (pa.ArrowInvalid, ValueError) as error:
            raise BadRecordsError from error
        return self._shaped(batch)

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Put columns `x[0]`, `x[1]`, ... together as one of lists."""
        if not self._lists:
            return batch.select(self._fields.names)
        arrays = []
        for name in self._fields.names:
            parts = self._lists.get(name)
            if parts is None:
                arrays.append(batch[name])
                continue
            flat = np.stack([batch[part].to_numpy() for part in parts], axis=1).reshape(-1)
            arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(flat), len(parts)))
        return pa.RecordBatch.from_arrays(arrays, names=self._fields.names)

    def _one(self, line: bytes) -> pa.RecordBatch | Fault:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            return "encoding", f"byte {error.start} (0x{line[error.start]:02x}) is not UTF-8"
        if not text.strip():
            return "syntax", "the line is blank"
        try:
            values = next(csv.reader([text.rstrip("\r\n")], strict=True))
        except (csv.Error, StopIteration):
            return "syntax", "a quote is not closed on its line; values hold no line ends here"
        if len(values) != len(self._names):
            return (
                "schema",
                f"{len(values)} values, expected {len(self._names)} ({listed(self._names)})",
            )
        return self._fields.row(self._typed(dict(zip(self._names, values, strict=True))))

    def _typed(self, row: dict[str, str]) -> dict[str, Any]:
        columns = self._fields.form.columns
        typed: dict[str, Any] = {}
        for name in self._fields.names:
            if name in self._lists:
                typed[name] = [_number(row[part]) for part in self._lists[name]]
            elif name in (columns.src, columns.dst) and self._fields.form.ids == "string":
                typed[name] = row[name]
            elif name in (columns.src, columns.dst):
                value = row[name].strip()
                typed[name] = int(value) if _INTEGER.fullmatch(value) else row[name]
            else:
                typed[name] = row[name] if name == self._fields.event_id else _number(row[name])
        return typed


def _lines(value: bytes) -> list[bytes]:
    """Return the lines of a record, at least one; a line end at its end makes none."""
    return value.removesuffix(b"\n").split(b"\n")


def _list_columns(fields: Fields) -> dict[str, list[str]]:
    """Return of each feature that is a list the columns that hold it."""
    widths = zip(fields.form.columns.features, fields.form.widths, strict=True)
    return {name: [f"{name}[{i}]" for i in range(width)] for name, width in widths if width > 1}


def _columns(fields: Fields) -> list[str]:
    """Return the columns of a line."""
    lists = _list_columns(fields)
    return [column for name in fields.names for column in lists.get(name, [name])]


def _number(text: str) -> Any:
    text = text.strip()
    if not text:
        return None
    if _NUMBER.fullmatch(text):
        return int(text) if _INTEGER.fullmatch(text) else Decimal(text)
    return float(text) if _NOT_FINITE.fullmatch(text) else text
