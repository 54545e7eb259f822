"""Codecs from Kafka records (JSON, CSV, Arrow, Avro) to rows, and the record decoder."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.streams.files.csv import csv_parser, typed_id
from tgflow.streams.files.decoder import SAMPLES
from tgflow.streams.files.jsonl import json_parser, parse_object
from tgflow.streams.files.text import Parser, Quotes, parse_rows
from tgflow.streams.ingest.ordering import no_rows
from tgflow.streams.kafka.avro import AvroReader, BadRecord, frame_of, unframed
from tgflow.streams.kafka.config import CodecName, KafkaConfig
from tgflow.streams.kafka.consumer import Chunk
from tgflow.streams.rows.row_batch import Fault, Int64s, Origin, RowBatch
from tgflow.streams.rows.schema import listed
from tgflow.streams.rows.validate import RowSchema, feature_names, validate

MAX_RECORD_ROWS = 1 << 20
"""Maximum rows of an Arrow record."""
_QUOTES = Quotes(b",")
_OPEN_QUOTE = "syntax", "a quote is not closed; close it"


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of some records, numbered from 0 over all of them; an undecodable record is one row.

    `batches` hold all decodable rows in order, with at least the columns of an event; their buffers
    are safe to read, their values are unchecked, and their types may differ. `num_rows` counts the
    rows of each record, good and bad; `faults` are by row number.
    """

    batches: Sequence[pa.RecordBatch]
    num_rows: Int64s
    faults: Mapping[int, Fault]


class Codec:
    """Decodes the values of records."""

    def __init__(self, schema: RowSchema) -> None:
        self.schema = schema

    def decode(self, values: Sequence[bytes]) -> Decoded:
        """Return the rows of each record, which do not depend on other records."""
        raise NotImplementedError

    def raw(self, value: bytes, row: int) -> bytes:
        """Return a row of a record unchanged, or as JSON if the record is binary."""
        return value


class CsvCodec(Codec):
    """Lines of src, dst, t, relation, label, weight, features and event id, without absent columns.

    A list feature takes as many columns as it has numbers, `x[0]`, `x[1]`, ...
    """

    def __init__(self, schema: RowSchema) -> None:
        columns = schema.columns
        features = feature_names(columns.features, schema.widths)
        columns = replace(columns, features=tuple(features))
        self.schema = replace(schema, columns=columns, widths=(1,) * len(features))
        first = [columns.src, columns.dst, *columns.times, *columns.single(int, float), *features]
        names = list(dict.fromkeys([*first, columns.event_id] if columns.event_id else first))
        self._parser = csv_parser(names, ",", self.schema, _QUOTES)

    def decode(self, values: Sequence[bytes]) -> Decoded:
        """Return one row for each line, or quoted lines; a record has at least one."""
        records = [value.removesuffix(b"\n") for value in values]
        sizes = [[len(line) + 1 for line in record.split(b"\n")] for record in records]
        open_quotes = []
        for i, record in enumerate(records):
            if b'"' in record:
                ends = _QUOTES.row_ends(record + b"\n")
                sizes[i] = np.diff(ends, prepend=0).tolist()
                if _QUOTES.find(record).is_open:  # it would hide the next record
                    records[i] = record[: len(record) + 1 - sizes[i][-1]]
                    open_quotes.append(i)
                    sizes[i][-1] = 1
        num_rows = np.array([len(each) for each in sizes], dtype=np.int64)
        decoded = _parsed(records, num_rows, self._parser, np.cumsum([*chain.from_iterable(sizes)]))
        last = np.cumsum(num_rows) - 1
        faults = {int(last[i]): _OPEN_QUOTE for i in open_quotes}
        return replace(decoded, faults={**decoded.faults, **faults})

    def raw(self, value: bytes, row: int) -> bytes:
        ends = _QUOTES.row_ends(value)
        return value[ends[row - 1] if row else 0 : ends[row]].removesuffix(b"\n")


class JsonCodec(Codec):
    """JSON objects with the fields of an event, one per record."""

    def __init__(self, schema: RowSchema) -> None:
        super().__init__(schema)
        widths = zip(schema.columns.features, schema.widths, strict=True)
        lists: dict[str, Any] = {name: [] for name, width in widths if width > 1}
        self._parser = json_parser(schema, lists)

    def decode(self, values: Sequence[bytes]) -> Decoded:
        """Return one row for each record; the frame of a registry before it is skipped."""
        frames = {i: number for i, v in enumerate(values) if (number := frame_of(v)) is not None}
        records = [unframed(value).strip(b" \t\r\n") for value in values]
        faults = {} if _is_plain(records) else _make_plain(records)
        decoded = _parsed(records, np.ones(len(values), dtype=np.int64), self._parser)
        faults = {**decoded.faults, **faults}
        for i in frames.keys() & faults.keys():
            if faults[i][0] in ("syntax", "encoding"):
                text = f"no JSON object behind the frame of schema id {frames[i]}: {faults[i][1]}"
                faults[i] = faults[i][0], f"{text}; Avro is read by --codec avro --registry URL"
        return replace(decoded, faults=faults)


def _parsed(
    records: Sequence[bytes], num_rows: Int64s, parser: Parser, ends: Int64s | None = None
) -> Decoded:
    """Return the rows of records that consist of lines of text, or of rows with these `ends`."""
    if not records:
        return Decoded([], num_rows, {})
    lines = b"\n".join([*records, b""])
    ends = np.cumsum([len(each) + 1 for each in records]) if ends is None else ends
    batches, _, faults = parse_rows(lines, ends, parser, len(lines))
    return Decoded(batches, num_rows, faults)


def _is_plain(records: Sequence[bytes]) -> bool:
    """Return whether all records are UTF-8 without line ends."""
    text = b" ".join(records)
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return b"\n" not in text


def _make_plain(records: list[bytes]) -> dict[int, Fault]:
    """Write each object on one line; an invalid record becomes a blank line and a fault."""
    faults = {}
    for i, record in enumerate(records):
        _, fault = parse_object(record) if not _is_plain([record]) else ({}, None)
        if fault is not None:
            faults[i] = fault
        records[i] = b"" if fault else record.replace(b"\n", b" ")
    return faults


_UNREADABLE = (pa.ArrowException, ValueError, OSError, EOFError, StopIteration, struct.error)


class ArrowCodec(Codec):
    """Arrow IPC: one stream per record, with any number of rows; the fastest codec.

    External data is bounded before it is read: no compression (topics have their own), no
    dictionaries, and no types in which a few bytes can represent many rows.
    """

    def __init__(self, schema: RowSchema) -> None:
        super().__init__(schema)
        self._names = schema.columns.names
        self._checked: tuple[bytes, pa.Schema | None] = b"", None
        """The latest schema, which is one of events, and its bytes."""

    def decode(self, values: Sequence[bytes]) -> Decoded:
        batches: list[pa.RecordBatch] = []
        num_rows = np.ones(len(values), dtype=np.int64)
        faults: dict[int, Fault] = {}
        done = 0
        for i, value in enumerate(values):
            try:
                found = self._batches(value)
            except BadRecord as error:
                faults[done] = error.fault
            else:
                num_rows[i] = sum(map(len, found))
                batches += found
            done += int(num_rows[i])
        return Decoded(_joined([batch for batch in batches if len(batch)]), num_rows, faults)

    def raw(self, value: bytes, row: int) -> bytes:
        try:
            [batch] = _joined(self._batches(value))
        except (BadRecord, ValueError):
            return value
        [fields] = batch.slice(row, 1).to_pylist()
        return json.dumps(fields, default=str).encode()

    def _batches(self, value: bytes) -> list[pa.RecordBatch]:
        """Return the selected columns of all batches; every buffer lies within the record."""
        try:
            messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(value))
            first = messages.read_next_message()
            data, schema = self._checked
            if schema is None or data != first.metadata.to_pybytes():
                self._check(schema := pa.ipc.read_schema(first))
                self._checked = first.metadata.to_pybytes(), schema
            batches = []
            for message in messages:
                batches.append(self._read_batch(message, schema))
                if (num_rows := sum(map(len, batches))) > MAX_RECORD_ROWS:
                    text = f"the record has {num_rows} rows, more than {MAX_RECORD_ROWS}"
                    raise BadRecord("too_large", text)
            return batches
        except _UNREADABLE as error:
            text = f"not a complete Arrow stream: {str(error) or 'it is empty'}"
            raise BadRecord("syntax", text) from error

    def _read_batch(self, message: pa.ipc.Message, schema: pa.Schema) -> pa.RecordBatch:
        if message.type != "record batch":
            text = f"it holds {message.type}; write columns without dictionaries"
            raise BadRecord("schema", text)
        if _is_compressed(message.metadata):
            raise BadRecord("schema", "its buffers are compressed; compress the topic instead")
        batch = pa.ipc.read_record_batch(message, schema).select(self._names)
        batch.validate(full=True)
        return batch

    def _check(self, schema: pa.Schema) -> None:
        for name in self._names:
            if schema.names.count(name) != 1:
                text = f"there must be one column {name!r}; the columns are {listed(schema.names)}"
                raise BadRecord("schema", text)
            kind = schema.field(name).type
            is_list = any(test(kind) for test in _LISTS)
            tests = _PLAIN[:4] if is_list else _PLAIN
            if not any(test(kind.value_type if is_list else kind) for test in tests):
                text = f"{name} is of type {kind}; write plain numbers or text"
                raise BadRecord("schema", text)


def _joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Concatenate batches of equal types."""
    groups = [list(group) for _, group in groupby(batches, lambda batch: batch.schema)]
    return [group[0] if len(group) == 1 else pa.concat_batches(group) for group in groups]


_PLAIN = (
    *(pa.types.is_integer, pa.types.is_decimal128, pa.types.is_floating, pa.types.is_boolean),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_temporal),
)
"""Types whose values have bytes of their own; likewise lists of the numbers, the first four."""
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


_HEADER, _COMPRESSION = 2, 3
"""Indices of FlatBuffers fields: the header of a `Message`, the compression of a `RecordBatch`."""


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Return whether a record batch's header, a FlatBuffers table, declares compressed buffers."""
    data = memoryview(metadata)
    header = _field(data, _unpack("<I", data, 0), _HEADER)
    return bool(_field(data, header + _unpack("<I", data, header), _COMPRESSION))


def _field(data: memoryview, table: int, index: int) -> int:
    """Return the offset of a table's field, 0 if it is absent."""
    # a table begins with the distance back to its vtable: two sizes, then offsets of the fields
    fields, place = table - _unpack("<i", data, table), 4 + 2 * index
    is_listed = place < _unpack("<H", data, fields)
    offset = _unpack("<H", data, fields + place) if is_listed else 0
    return table + offset if offset else 0


def _unpack(form: str, data: memoryview, at: int) -> int:
    if at < 0:
        raise struct.error("an offset before the beginning")
    value: int = struct.unpack_from(form, data, at)[0]
    return value


class AvroCodec(Codec):
    """Avro records, one per event, by their own schemas; values are read as Arrow's are."""

    def __init__(self, schema: RowSchema, config: KafkaConfig) -> None:
        super().__init__(schema)
        self._reader, self._names = AvroReader(config), schema.columns.names

    def decode(self, values: Sequence[bytes]) -> Decoded:
        rows: dict[int, dict[str, Any]] = {}
        faults: dict[int, Fault] = {}
        for i, value in enumerate(values):
            try:
                record = self._reader.read(value)
            except BadRecord as error:
                faults[i] = error.fault
                continue
            if absent := [name for name in self._names if name not in record]:
                text = f"there must be a field {absent[0]!r}; the fields are {listed([*record])}"
                faults[i] = "schema", text
            else:
                rows[i] = {name: record[name] for name in self._names}
        batches = self._batches([*rows.values()])
        if batches is None:  # a row does not depend on the types of others
            found = {i: self._batches([row]) for i, row in rows.items()}
            text = f"a value of {listed(self._names)} is no number, text, time or list of numbers"
            faults |= {i: ("type", text) for i, batch in found.items() if batch is None}
            batches = [batch for each in found.values() for batch in each or ()]
        return Decoded(_joined(batches), np.ones(len(values), dtype=np.int64), faults)

    def _batches(self, rows: Sequence[Mapping[str, Any]]) -> list[pa.RecordBatch] | None:
        """Return rows as at most one batch; None if a column has not one type that Arrow has."""
        columns = []
        for name in self._names:
            values = [row[name] for row in rows]
            if len({*map(type, values)} - {type(None)}) > 1:
                return None
            try:
                columns.append(pa.array(values))
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                return None
        return [pa.RecordBatch.from_arrays(columns, self._names)] if rows else []


_CODECS: Mapping[CodecName, Callable[[RowSchema], Codec]] = {
    "json": JsonCodec,
    "csv": CsvCodec,
    "arrow": ArrowCodec,
}


@dataclass(frozen=True)
class RecordOrigins:
    """Function from row to origin, of the rows of some records of one partition."""

    partition: int
    offsets: Int64s
    """Offset of each record."""
    num_rows: Int64s
    """Number of rows of each record."""
    values: Sequence[bytes]
    decoder: RecordDecoder | None
    """Has decoded them; None on the way from another process."""

    @cached_property
    def _ends(self) -> Int64s:
        return np.cumsum(self.num_rows)

    def __call__(self, row: int) -> Origin:
        """Return the origin of a row."""
        assert self.decoder is not None
        number = int(np.searchsorted(self._ends, row, side="right"))
        num_rows = int(self.num_rows[number])
        within = row - int(self._ends[number]) + num_rows
        where: dict[str, int | str] = {"topic": self.decoder.topic, "partition": self.partition}
        where |= {"offset": int(self.offsets[number]), "row": within}
        value = self.values[number]
        return Origin(where, value if num_rows == 1 else self.decoder.codec.raw(value, within))


class RecordDecoder:
    """Decodes the records of a topic."""

    def __init__(self, config: KafkaConfig) -> None:
        self.topic, self._limit = config.topic, config.checks.max_bytes
        is_avro, schema = config.codec == "avro", config.schema
        self.codec = AvroCodec(schema, config) if is_avro else _CODECS[config.codec](schema)

    def first_ids(self, values: Sequence[bytes]) -> list[tuple[str, object]]:
        """Return the ids in some records, as numbers or texts, each with its column."""
        ends = [self.codec.schema.columns.src, self.codec.schema.columns.dst]
        if isinstance(self.codec, JsonCodec):
            rows = [parse_object(unframed(value))[0] for value in values]
        else:
            batches = self.codec.decode(values).batches
            rows = [row for batch in batches for row in batch.select(ends).to_pylist()]
        found = [(name, row.get(name)) for row in rows[:SAMPLES] for name in ends]
        is_csv = isinstance(self.codec, CsvCodec)
        return [(name, typed_id(str(value)) if is_csv else value) for name, value in found]

    def decode(self, chunk: Chunk) -> RowBatch:
        """Return the rows of `chunk`, possibly none."""
        counts, limit = dict(chunk.counts), self._limit
        records = [record for record in chunk.records if record.value is not None]
        if len(records) < len(chunk.records):
            counts["tombstone"] = len(chunk.records) - len(records)
        values = [record.value for record in records]
        large = [i for i, value in enumerate(values) if len(value) > limit]
        for i in large:  # not parsed; an empty record is one bad row
            values[i] = b""
        decoded = self.codec.decode(values)
        if empty := len(values) - int(np.count_nonzero(decoded.num_rows)):
            counts["empty"] = empty
        ends, faults = np.cumsum(decoded.num_rows), dict(decoded.faults)
        for i in large:
            text = f"the record has {len(records[i].value)} bytes, more than max_record_bytes"
            faults[int(ends[i]) - 1] = "too_large", f"{text}={limit}"

        offsets = np.fromiter((record.offset for record in records), np.int64, len(records))
        whole = [record.value for record in records]
        times = (-1 if record.timestamp is None else record.timestamp for record in records)
        written = np.repeat(np.fromiter(times, np.int64, len(records)), decoded.num_rows)
        schema, num_rows = self.codec.schema, int(decoded.num_rows.sum())
        numbers = np.delete(np.arange(num_rows), list(faults)) if faults else None
        if decoded.batches:
            rows = validate(decoded.batches, schema, index=numbers, faults=faults)
        else:
            none = no_rows(schema.ids, sum(schema.widths))
            rows = RowBatch(none, numbers, dict(sorted(faults.items())), num_rows)
        origins = RecordOrigins(chunk.partition, offsets, decoded.num_rows, whole, self)
        return replace(
            rows,
            locate=origins,
            position=asdict(chunk.cursor),
            partition=chunk.partition,
            counts={**counts, **rows.counts},
            gaps=chunk.gaps,
            written=written if rows.index is None else written[rows.index],
        )
