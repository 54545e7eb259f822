"""A frame: rows and what was known after them, in one piece that is whole or recognizably not."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tgflow.durable.errors import LogVersion

MAGIC = b"tgF\xf1"
VERSION = 1
_FIELDS = struct.Struct("<4sHxxIQQQQI")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CRC.size
MAX_BODY_BYTES = 1 << 30
"""Of one frame: a length beyond this is damage, and rows beyond it must be split."""


class BadFrame(ValueError):
    """Bytes that are no frame written for this place."""


@dataclass(frozen=True, slots=True)
class Body:
    """A frame's rows and footer as bytes, before it has a place."""

    data: memoryview
    footer_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before a frame's body."""

    segment: int
    byte: int
    synced: int
    columns_bytes: int
    footer_bytes: int
    crc: int

    @property
    def end(self) -> int:
        """The byte after the frame."""
        return self.byte + HEADER_BYTES + self.columns_bytes + self.footer_bytes


def encode(rows: pa.RecordBatch, footer: Mapping[str, Any]) -> Body:
    """Return the body of a frame."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    end = json.dumps(footer, separators=(",", ":"), allow_nan=False).encode()
    sink.write(end)
    data = sink.getvalue()
    if data.size > MAX_BODY_BYTES:
        raise ValueError(
            f"a frame of {rows.num_rows} rows has {data.size} bytes, at most {MAX_BODY_BYTES} are "
            "written at once; append fewer rows"
        )
    return Body(memoryview(data), len(end), zlib.crc32(data))


def place(body: Body, segment: int, byte: int, synced: int) -> bytes:
    """Return the bytes of a frame that begins at `byte` of `segment`."""
    columns_bytes = len(body.data) - body.footer_bytes
    fields = _FIELDS.pack(
        MAGIC, VERSION, body.footer_bytes, columns_bytes, segment, byte, synced, body.crc
    )
    return b"".join((fields, _CRC.pack(zlib.crc32(fields)), body.data))


def parse_header(data: bytes | memoryview, segment: int, byte: int) -> Header:
    """Return the header in `data`, which must have been written for this place."""
    if len(data) < HEADER_BYTES:
        raise BadFrame("the header is cut off")
    if zlib.crc32(data[: _FIELDS.size]) != _CRC.unpack_from(data, _FIELDS.size)[0]:
        raise BadFrame("the header is damaged")
    magic, version, footer, columns, segment_, byte_, synced, crc = _FIELDS.unpack_from(data)
    if magic != MAGIC or (segment_, byte_) != (segment, byte):
        raise BadFrame("the header belongs elsewhere")
    if version != VERSION:
        raise LogVersion(f"the log has frames of version {version}, this tgflow reads {VERSION}")
    if footer + columns > MAX_BODY_BYTES:
        raise BadFrame(f"the frame claims {footer + columns} bytes")
    return Header(segment, byte, synced, columns, footer, crc)


def check_body(header: Header, body: bytes) -> None:
    """Raise `BadFrame` unless `body` is what the header says."""
    if len(body) != header.columns_bytes + header.footer_bytes or zlib.crc32(body) != header.crc:
        raise BadFrame("the body is cut off or damaged")


def decode(header: Header, body: bytes) -> tuple[pa.RecordBatch, dict[str, Any]]:
    """Return the rows and the footer of a body that has been checked."""
    try:
        columns = pa.py_buffer(body).slice(0, header.columns_bytes)
        with pa.ipc.open_stream(columns) as reader:
            rows = reader.read_next_batch()
        rows.validate()
        footer = json.loads(body[header.columns_bytes :])
    except (pa.ArrowException, OSError, StopIteration, ValueError, RecursionError) as error:
        raise BadFrame(f"the body cannot be read: {error}") from None
    if not isinstance(footer, dict):
        raise BadFrame("the footer is no object")
    return rows, footer
