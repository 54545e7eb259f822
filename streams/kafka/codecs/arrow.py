"""Arrow IPC: one stream a record, with as many rows as one likes; the fast form.

What comes from outside is bounded before it is read: no compression (a topic has its own), no
dictionaries, no types of which a few bytes can stand for many rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.streams.files.jsonl import json_types
from tgflow.streams.kafka.codecs.arrow_header import BatchHeader, DamagedHeaderError
from tgflow.streams.kafka.codecs.codec import Decoded
from tgflow.streams.rows.checks import Fault
from tgflow.streams.rows.schema import listed
from tgflow.streams.rows.validate import RowSchema

MAX_RECORD_ROWS = 1 << 20


_UNREADABLE = (pa.ArrowException, ValueError, OSError, EOFError, StopIteration, DamagedHeaderError)


class _FaultError(Exception):
    """What is wrong with a record."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.fault: Fault = (code, text)


class ArrowCodec:
    """Arrow streams with the columns of an event.

    Args:
        schema: What a row must be.
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
            while (message := _next(messages)) is not None:
                batches.append(self._read_batch(message, schema))
                if sum(map(len, batches)) > MAX_RECORD_ROWS:
                    raise _FaultError(*_too_many(sum(map(len, batches))))
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
        header = BatchHeader.read(message.metadata)
        if header.compressed:
            raise _FaultError("schema", "its buffers are compressed; compress the topic instead")
        if header.num_rows > MAX_RECORD_ROWS:
            raise _FaultError(*_too_many(header.num_rows))
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
            if not _is_plain(schema.field(name).type):
                text = f"{name} is of type {schema.field(name).type}; write plain numbers or text"
                raise _FaultError("schema", text)
        unknown = sorted(set(schema.names) - set(names)) if self._reject_unknown else []
        if unknown:
            raise _FaultError("schema", f"the column {unknown[0]!r} is none of {names}")


def _joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows in as few batches as their types allow."""
    groups = [list(group) for _, group in groupby(batches, lambda batch: batch.schema)]
    return [group[0] if len(group) == 1 else pa.concat_batches(group) for group in groups]


def _next(messages: pa.ipc.MessageReader) -> pa.ipc.Message | None:
    try:
        return messages.read_next_message()
    except StopIteration:
        return None


def _too_many(num_rows: int) -> Fault:
    return "too_large", f"the record has {num_rows} rows, more than {MAX_RECORD_ROWS}"


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether each value of a type has bytes of its own."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_number(kind.value_type)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return is_text or _is_number(kind) or pa.types.is_temporal(kind)


def _is_number(kind: pa.DataType) -> bool:
    is_exact = pa.types.is_integer(kind) or pa.types.is_decimal128(kind)
    return bool(is_exact or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
