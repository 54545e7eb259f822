"""The header of a record batch in an Arrow stream, read before anything is made from it.

It is a FlatBuffers table, little endian: where a table lies there stands how far before it its
list of fields begins, and that list holds, after its own size and the table's, where each field
is within the table, 0 for one that is not there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa

_HEADER, _LENGTH, _COMPRESSION = 2, 0, 3
"""Of a `Message` its header; of a `RecordBatch` its length and how its buffers are compressed."""


class DamagedHeaderError(Exception):
    """The header points outside of itself."""


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What is known of a record batch before it is read.

    Args:
        num_rows: How many rows it says to have.
        compressed: Whether its buffers are compressed.
    """

    num_rows: int
    compressed: bool

    @classmethod
    def read(cls, metadata: pa.Buffer) -> BatchHeader:
        """Return the header in the metadata of a message that is a record batch.

        Raises:
            DamagedHeaderError: If it cannot be one.
        """
        data = memoryview(metadata)
        try:
            message = _unpack("<I", data, 0)
            at = _field(data, message, _HEADER)
            batch = at + _unpack("<I", data, at)
            length = _field(data, batch, _LENGTH)
            num_rows = _unpack("<q", data, length) if length else 0
            return cls(num_rows, bool(_field(data, batch, _COMPRESSION)))
        except struct.error as error:
            raise DamagedHeaderError(str(error)) from error


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
