"""Records to rows: codecs of JSON, CSV and Arrow, and the decoder of a partition's records."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, groupby
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tgflow.streams.errors import RowFault
from tgflow.streams.files.csv import csv_parser
from tgflow.streams.files.jsonl import json_parser, json_types, parse_object
from tgflow.streams.files.text import Parser, Text, parse_lines
from tgflow.streams.kafka.config import CodecName, KafkaConfig
from tgflow.streams.kafka.consumer import Chunk, Cursor
from tgflow.streams.rows.row_batch import EventColumns, Fault, Int64s, Origin, RowBatch
from tgflow.streams.rows.schema import listed
from tgflow.streams.rows.validate import RowSchema, validate

MAX_ROWS = 1 << 16
"""Rows that are handed on at most at a time."""
MAX_RECORD_ROWS = 1 << 20
"""Rows that an Arrow record may have."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of some records, numbered from 0 over all of them; a record that is none is one row.

    `batches`, at least one, hold all rows that could be decoded, in order, with at least the
    columns of an event: safe to touch, but not checked, and their types may differ. `num_rows` are
    those of each record, good and bad; `faults` are by number.
    """

    batches: Sequence[pa.RecordBatch]
    num_rows: Int64s
    faults: Mapping[int, Fault]


class CsvCodec:
    """Lines of src, dst, t, label, weight, the features and the event id, as far as there are any.

    A feature that is a list takes as many columns as it has numbers, `x[0]`, `x[1]`, ...
    """

    def __init__(self, schema: RowSchema) -> None:
        columns = schema.columns
        widths = zip(columns.features, schema.widths, strict=True)
        features = [n if w == 1 else f"{n}[{i}]" for n, w in widths for i in range(w)]
        columns = replace(columns, features=tuple(features))
        self.schema = replace(schema, columns=columns, widths=(1,) * len(features))
        first = [columns.src, columns.dst, columns.t, *columns.single(int, float), *features]
        names = list(dict.fromkeys([*first, columns.event_id] if columns.event_id else first))
        self._parser = csv_parser(names, ",", columns, schema.ids, schema.time)

    def decode(self, values: Sequence[bytes]) -> Decoded:
        """Return one row for each line; a record has at least one."""
        records = [value.removesuffix(b"\n") for value in values]
        num_rows = np.fromiter((record.count(b"\n") + 1 for record in records), dtype=np.int64)
        batch, faults = _parse(records, int(num_rows.sum()), self._parser)
        return Decoded([batch], num_rows, faults)

    def raw(self, value: bytes, row: int) -> bytes:
        """Return the line."""
        return value.split(b"\n")[row]


class JsonCodec:
    """JSON objects with the fields of an event, one a record."""

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
        batch, found = _parse(records, len(records), self._parser)
        return Decoded([batch], np.ones(len(values), dtype=np.int64), found | faults)

    def raw(self, value: bytes, row: int) -> bytes:
        """Return the record itself."""
        return value


def _parse(
    records: Sequence[bytes], num_lines: int, parser: Parser
) -> tuple[pa.RecordBatch, dict[int, Fault]]:
    """Return the rows of lines, and what is wrong with the others, by number."""
    if not records:
        return pa.RecordBatch.from_pylist([], parser.schema), {}
    lines = b"\n".join([*records, b""])
    batch, _, faults = parse_lines(lines, num_lines, parser, len(lines))
    return batch, {fault.row: (fault.code, fault.text) for fault in faults}


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

    def parse(lines: Text, num_lines: int) -> pa.RecordBatch:
        try:
            return first.parse(lines, num_lines).cast(second.schema)
        except pa.ArrowInvalid:
            return second.parse(lines, num_lines)

    return replace(second, parse=parse)


_UNREADABLE = (pa.ArrowException, ValueError, OSError, EOFError, StopIteration, struct.error)


class _FaultError(Exception):
    """What is wrong with a record."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.fault: Fault = (code, text)


class ArrowCodec:
    """Arrow IPC: one stream a record, with any number of rows; the fast form.

    What comes from outside is bounded before it is read: no compression (a topic has its own), no
    dictionaries, no types of which a few bytes can stand for many rows.
    """

    def __init__(self, schema: RowSchema) -> None:
        self.schema = schema
        self._names = schema.columns.names
        self._reject_unknown = schema.checks.unknown_keys == "reject"
        self._schema_bytes = b""
        self._schema: pa.Schema | None = None

    def decode(self, values: Sequence[bytes]) -> Decoded:
        """Return the rows of all batches of each record."""
        batches: list[pa.RecordBatch] = []
        num_rows = np.ones(len(values), dtype=np.int64)
        bad: list[tuple[int, Fault]] = []
        for i, value in enumerate(values):
            try:
                found = self._batches(value)
            except _FaultError as error:
                bad.append((i, error.fault))
            else:
                num_rows[i] = sum(map(len, found))
                batches += found
        ends = np.cumsum(num_rows)
        faults = {int(ends[i]) - 1: fault for i, fault in bad}
        batches = _joined([batch for batch in batches if len(batch)]) or [self._no_rows()]
        return Decoded(batches, num_rows, faults)

    def raw(self, value: bytes, row: int) -> bytes:
        """Return the row as JSON, or a record that cannot be read as it is."""
        try:
            [batch] = _joined(self._batches(value))
        except (_FaultError, ValueError):
            return value
        [fields] = batch.slice(row, 1).to_pylist()
        return json.dumps(fields, default=str).encode()

    def _batches(self, value: bytes) -> list[pa.RecordBatch]:
        """Return the selected columns of all batches of a record, every buffer within it."""
        try:
            messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(value))
            schema = self._read_schema(messages.read_next_message())
            batches = []
            for message in messages:
                batches.append(self._read_batch(message, schema))
                if sum(map(len, batches)) > MAX_RECORD_ROWS:
                    raise _too_many(sum(map(len, batches)))
            return batches
        except _UNREADABLE as error:
            text = f"no whole Arrow stream: {str(error) or 'it is empty'}"
            raise _FaultError("syntax", text) from error

    def _read_schema(self, message: pa.ipc.Message) -> pa.Schema:
        """Return the stream's schema, once it is one of events; a repeated one is known."""
        data = message.metadata.to_pybytes()
        if self._schema is not None and data == self._schema_bytes:
            return self._schema
        schema = pa.ipc.read_schema(message)
        self._check(schema)
        self._schema_bytes, self._schema = data, schema
        return schema

    def _read_batch(self, message: pa.ipc.Message, schema: pa.Schema) -> pa.RecordBatch:
        if message.type != "record batch":
            text = f"it holds a {message.type}; write columns without dictionaries"
            raise _FaultError("schema", text)
        num_rows, is_compressed = _batch_header(message.metadata)
        if is_compressed:
            raise _FaultError("schema", "its buffers are compressed; compress the topic instead")
        if num_rows > MAX_RECORD_ROWS:
            raise _too_many(num_rows)
        batch = pa.ipc.read_record_batch(message, schema).select(self._names)
        batch.validate(full=True)
        return batch

    def _no_rows(self) -> pa.RecordBatch:
        """Return a batch of no rows that passes every check."""
        schema = self.schema
        widths = zip(schema.columns.features, schema.widths, strict=True)
        lists: dict[str, Any] = {name: [] for name, width in widths if width > 1}
        types = json_types(schema.columns, schema.ids, schema.time, lists)
        return pa.RecordBatch.from_pylist([], pa.schema(list(types.items())))

    def _check(self, schema: pa.Schema) -> None:
        names = self._names
        for name in names:
            if schema.names.count(name) != 1:
                text = f"there must be one column {name!r}; the columns are {listed(schema.names)}"
                raise _FaultError("schema", text)
            if not _is_plain_type(schema.field(name).type):
                text = f"{name} is of type {schema.field(name).type}; write plain numbers or text"
                raise _FaultError("schema", text)
        unknown = sorted(set(schema.names) - set(names)) if self._reject_unknown else []
        if unknown:
            raise _FaultError("schema", f"the column {unknown[0]!r} is none of {names}")


def _joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows in as few batches as their types allow."""
    groups = [list(group) for _, group in groupby(batches, lambda batch: batch.schema)]
    return [group[0] if len(group) == 1 else pa.concat_batches(group) for group in groups]


def _too_many(num_rows: int) -> _FaultError:
    text = f"the record has {num_rows} rows, more than {MAX_RECORD_ROWS}"
    return _FaultError("too_large", text)


def _is_plain_type(kind: pa.DataType) -> bool:
    """Return whether each value of a type has bytes of its own."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_number(kind.value_type)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return is_text or _is_number(kind) or pa.types.is_temporal(kind)


def _is_number(kind: pa.DataType) -> bool:
    is_exact = pa.types.is_integer(kind) or pa.types.is_decimal128(kind)
    return bool(is_exact or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


_HEADER, _LENGTH, _COMPRESSION = 2, 0, 3
"""Of a `Message` its header; of a `RecordBatch` its length and how its buffers are compressed."""


def _batch_header(metadata: pa.Buffer) -> tuple[int, bool]:
    """Return how many rows a record batch declares, and whether it is compressed, from its header.

    It is a FlatBuffers table, little endian: the first 4 bytes of a table tell how far before it
    its list of fields begins, and that list holds, after its own size and the table's, where each
    field is within the table, 0 for one that is not there. Raises `struct.error` if it points
    outside of itself.
    """
    data = memoryview(metadata)
    at = _field(data, _unpack("<I", data, 0), _HEADER)
    batch = at + _unpack("<I", data, at)
    length = _field(data, batch, _LENGTH)
    return _unpack("<q", data, length) if length else 0, bool(_field(data, batch, _COMPRESSION))


def _field(data: memoryview, table: int, index: int) -> int:
    """Return where a field of a table lies, 0 if it is not there."""
    fields = table - _unpack("<i", data, table)
    size = _unpack("<H", data, fields)
    place = 4 + 2 * index
    offset = _unpack("<H", data, fields + place) if place < size else 0
    return table + offset if offset else 0


def _unpack(form: str, data: memoryview, at: int) -> int:
    if at < 0:
        raise struct.error("a place before the beginning")
    value: int = struct.unpack_from(form, data, at)[0]
    return value


Codec: TypeAlias = JsonCodec | CsvCodec | ArrowCodec
_CODECS: Mapping[CodecName, Callable[[RowSchema], Codec]] = {
    "json": JsonCodec,
    "csv": CsvCodec,
    "arrow": ArrowCodec,
}


class RecordDecoder:
    """Decodes the records of a topic.

    Each codec has a `schema` that its rows must satisfy to become events, `decode(values)`, whose
    rows of a record do not depend on the others, and `raw(value, row)`, one row of a record as it
    stands there, or if it is binary as JSON.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._topic, self._limit = config.topic, config.checks.max_bytes
        self._codec = _CODECS[config.codec](config.schema)

    def decode(self, chunk: Chunk, skip: int) -> list[RowBatch]:
        """Return the rows of `chunk`, a bounded number at a time; at least one, perhaps without."""
        counts = dict(chunk.counts)
        records = [record for record in chunk.records if record.value is not None]
        if len(records) < len(chunk.records):
            counts["tombstone"] = len(chunk.records) - len(records)
        decoded = self._decode([record.value for record in records])
        if empty := len(decoded.num_rows) - int(np.count_nonzero(decoded.num_rows)):
            counts["empty"] = empty
        rows = self._validated(decoded)
        places = _Places(chunk, records, np.cumsum(decoded.num_rows))
        starts = range(skip, max(rows.num_rows, skip + 1), MAX_ROWS)
        pieces = [self._piece(rows, places, at) for at in starts]
        pieces[0] = replace(pieces[0], counts=counts, gaps=chunk.gaps)
        return pieces

    def _decode(self, values: list[bytes]) -> Decoded:
        """Return the rows of records; those that are too large are not parsed."""
        if not values or max(map(len, values)) <= self._limit:
            return self._codec.decode(values)
        fits = np.fromiter(map(len, values), dtype=np.int64) <= self._limit
        decoded = self._codec.decode(list(compress(values, fits.tolist())))
        num_rows = np.ones(len(values), dtype=np.int64)
        num_rows[fits] = decoded.num_rows
        ends = np.cumsum(num_rows)
        large: dict[int, Fault] = {}
        for i in np.flatnonzero(~fits):
            text = f"the record has {len(values[i])} bytes, more than max_record_bytes"
            large[int(ends[i]) - 1] = "too_large", f"{text}={self._limit}"
        others = np.delete(np.arange(int(ends[-1])), list(large))
        faults = {int(others[row]): fault for row, fault in decoded.faults.items()}
        return Decoded(decoded.batches, num_rows, faults | large)

    def _validated(self, decoded: Decoded) -> RowBatch:
        """Return all rows, those that could be decoded checked, numbered among all."""
        num_rows = int(decoded.num_rows.sum())
        numbers = np.delete(np.arange(num_rows), list(decoded.faults))
        faults = [RowFault(row, *fault) for row, fault in decoded.faults.items()]
        parts: list[RowBatch] = []
        done = 0
        for batch in decoded.batches:
            part = validate(batch, self._codec.schema, index=numbers[done : done + len(batch)])
            done += len(batch)
            faults += part.faults
            parts.append(part)
        ids = [part.event_ids for part in parts if part.event_ids is not None]
        index = [part.index for part in parts if part.index is not None] if faults else []
        return RowBatch(
            EventColumns.concat([part.events for part in parts]),
            np.concatenate(index) if index else None,
            sorted(faults, key=lambda fault: fault.row),
            num_rows,
            event_ids=np.concatenate(ids) if ids else None,
        )

    def _piece(self, rows: RowBatch, places: _Places, start: int) -> RowBatch:
        """Return at most `MAX_ROWS` rows from `start` on."""
        stop = min(start + MAX_ROWS, rows.num_rows)
        part, index = slice(start, stop), rows.index
        if index is not None:
            part = slice(*(int(i) for i in np.searchsorted(index, [start, stop])))
        return RowBatch(
            events=rows.events.take(part),
            index=None if index is None else index[part] - start,
            faults=[replace(f, row=f.row - start) for f in rows.faults if start <= f.row < stop],
            num_rows=max(0, stop - start),
            locate=lambda row: self._origin(places, start + row),
            position=places.cursor_at(stop).to_position(),
            event_ids=None if rows.event_ids is None else rows.event_ids[part],
            partition=places.chunk.partition,
        )

    def _origin(self, places: _Places, row: int) -> Origin:
        number, within = places.find(row)
        record, ends = places.records[number], places.ends
        where: dict[str, int | str] = {"topic": self._topic, "partition": places.chunk.partition}
        where |= {"offset": record.offset, "row": within}
        is_alone = ends[number] == 1 + (ends[number - 1] if number else 0)
        return Origin(where, record.value if is_alone else self._codec.raw(record.value, within))


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the rows of a chunk came from; `ends` are the numbers after each record's last row."""

    chunk: Chunk
    records: Sequence[Any]
    ends: Int64s

    def find(self, row: int) -> tuple[int, int]:
        """Return the record of a row, and the row's number in it."""
        record = int(np.searchsorted(self.ends, row, side="right"))
        return record, row - (int(self.ends[record - 1]) if record else 0)

    def cursor_at(self, row: int) -> Cursor:
        """Return where the partition continues at a row, or behind all of them."""
        last = self.chunk.cursor
        if not len(self.ends) or row >= self.ends[-1]:
            return last
        record, within = self.find(row)
        return last.after(self.records[record if within else record - 1], within)
