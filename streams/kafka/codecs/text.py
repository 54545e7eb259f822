"""Records of text: one JSON object each, or lines of CSV; parsed as files are, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.streams.files.blocks import TextBlock
from tgflow.streams.files.csv import csv_parser
from tgflow.streams.files.jsonl import json_parser, json_types, parse_object
from tgflow.streams.files.lines import Parser
from tgflow.streams.files.text import ParsedBlock, parse_block
from tgflow.streams.kafka.codecs.codec import Decoded
from tgflow.streams.rows.checks import Fault
from tgflow.streams.rows.validate import RowSchema


class CsvCodec:
    """Lines of src, dst, t, label, weight, the features and the event id, as far as there are any.

    A feature that is a list takes as many columns as it has numbers, `x[0]`, `x[1]`, ...

    Args:
        schema: What a row must be.
    """

    def __init__(self, schema: RowSchema) -> None:
        columns = schema.columns
        widths = zip(columns.features, schema.widths, strict=True)
        features = [n if w == 1 else f"{n}[{i}]" for n, w in widths for i in range(w)]
        columns = replace(columns, features=tuple(features))
        self.schema = replace(schema, columns=columns, widths=(1,) * len(features))
        first = [columns.src, columns.dst, columns.t, columns.label, columns.weight]
        first += [*features, columns.event_id]
        names = list(dict.fromkeys(name for name in first if name))
        self._parser = csv_parser(names, ",", columns, schema.ids, schema.time)

    def decode(self, values: Sequence[bytes]) -> Decoded:
        """Return one row for each line; a record has at least one."""
        records = [value.removesuffix(b"\n") for value in values]
        num_rows = np.fromiter((record.count(b"\n") + 1 for record in records), dtype=np.int64)
        parsed = _parse(records, self._parser)
        return Decoded([parsed.batch], num_rows, _faults(parsed))

    def raw(self, value: bytes, row: int) -> bytes:
        """Return the line."""
        return value.split(b"\n")[row]


class JsonCodec:
    """Objects with the fields of an event.

    Args:
        schema: What a row must be.
    """

    def __init__(self, schema: RowSchema) -> None:
        self.schema = schema
        columns, time, checks = schema.columns, schema.time, schema.checks
        widths = zip(columns.features, schema.widths, strict=True)
        first: dict[str, Any] = {name: [] for name, width in widths if width > 1}
        types = json_types(columns, schema.ids, time, first)
        self._parser = json_parser(types, columns, time, checks)
        if columns.event_id is not None:
            types = json_types(columns, schema.ids, time, {**first, columns.event_id: 0})
            numbers = json_parser(types, columns, time, checks)
            self._parser = _either(numbers, self._parser)

    def decode(self, values: Sequence[bytes]) -> Decoded:
        """Return one row for each record."""
        records = [value.strip(b" \t\r\n") for value in values]
        faults = {} if _is_plain(records) else _make_plain(records)
        parsed = _parse(records, self._parser)
        num_rows = np.ones(len(values), dtype=np.int64)
        return Decoded([parsed.batch], num_rows, _faults(parsed) | faults)

    def raw(self, value: bytes, row: int) -> bytes:
        """Return the record itself."""
        return value


def _parse(records: Sequence[bytes], parser: Parser) -> ParsedBlock:
    if not records:
        return ParsedBlock(pa.RecordBatch.from_pylist([], parser.schema), None, [])
    lines = b"\n".join([*records, b""])
    return parse_block(TextBlock(lines, 1, 0), parser, len(lines))


def _faults(parsed: ParsedBlock) -> dict[int, Fault]:
    return {fault.row: (fault.code, fault.text) for fault in parsed.faults}


def _is_plain(records: Sequence[bytes]) -> bool:
    """Return whether all records are UTF-8, and none has a line end."""
    text = b" ".join(records)
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return b"\n" not in text


def _make_plain(records: list[bytes]) -> dict[int, Fault]:
    """Write each object on one line; a record that is none becomes a blank one, with its fault."""
    faults = {}
    for i, record in enumerate(records):
        _, fault = parse_object(record) if not _is_plain([record]) else ({}, None)
        if fault is not None:
            faults[i] = fault
        records[i] = b"" if fault else record.replace(b"\n", b" ")
    return faults


def _either(first: Parser, second: Parser) -> Parser:
    """Return a parser of lines that `first` takes, or `second`; in the types of `second`."""

    def parse(block: TextBlock) -> pa.RecordBatch:
        try:
            return first.parse(block).cast(second.schema)
        except pa.ArrowInvalid:
            return second.parse(block)

    return replace(second, parse=parse)
