"""Batches of records as the broker sent them, so that thousands cost what one record does.

kafka-python makes an object of every record, which takes several microseconds. Here it hands on a
whole batch in place of a record, once it has checked the batch as ever: its CRC, its format,
whether its transaction was committed. That leans on parts of kafka-python which are not public, so
they are looked for first; without them all goes on as usual, only slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


class DamagedBatchError(ValueError):
    """A batch whose records do not fill it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The records of one batch, not taken apart.

    Args:
        data: Their bytes, decompressed.
        count: How many there are.
        base_offset: What their offsets count from.
        first_timestamp: What their timestamps count from.
        append_time: The timestamp of all of them if the broker gave it, else None.
    """

    data: bytes
    count: int
    base_offset: int
    first_timestamp: int
    append_time: int | None

    def __len__(self) -> int:
        return len(self.data)

    def take_apart(self) -> tuple[list[int], list[bytes | None], list[int]]:
        """Return of each record its offset, its value, and where it lies in `data`.

        Raises:
            DamagedBatchError: If the records do not fill the batch.
        """
        data, base, pos = self.data, self.base_offset, 0
        offsets: list[int] = []
        values: list[bytes | None] = []
        starts: list[int] = []
        try:
            for _ in range(self.count):
                starts.append(pos)
                size, pos = _varint(data, pos) if data[pos] & 0x80 else (data[pos] >> 1, pos + 1)
                end = pos + size
                pos += 2  # the attributes, and the first byte of the timestamp
                while data[pos - 1] & 0x80:
                    pos += 1
                delta = data[pos]
                if delta & 0x80:
                    delta, pos = _varint(data, pos)
                else:
                    delta, pos = delta >> 1, pos + 1
                if data[pos] == _NONE:
                    pos += 1
                else:
                    size, pos = _varint(data, pos)
                    pos += size
                size, pos = _varint(data, pos) if data[pos] & 0x80 else _small(data[pos], pos)
                offsets.append(base + delta)
                values.append(data[pos : pos + size] if size >= 0 else None)
                if pos + size >= end:
                    raise DamagedBatchError("a record is longer than it says")
                pos = end
        except IndexError as error:
            raise DamagedBatchError("a record goes beyond its batch") from error
        if pos != len(data):
            raise DamagedBatchError(f"{len(data) - pos} bytes are left after the last record")
        return offsets, values, starts

    def key_and_time(self, start: int) -> tuple[bytes | None, int]:
        """Return key and timestamp of the record that lies at `start`."""
        _, pos = _varint(self.data, start)
        delta, pos = _varint(self.data, pos + 1)
        _, pos = _varint(self.data, pos)
        size, pos = _varint(self.data, pos)
        time = self.first_timestamp + delta if self.append_time is None else self.append_time
        return (self.data[pos : pos + size] if size >= 0 else None), time


_NONE = 1
"""The length -1 as it is written."""


def _small(byte: int, pos: int) -> tuple[int, int]:
    return (byte >> 1) ^ -(byte & 1), pos + 1


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    """Return the number at `pos`, and where it ends."""
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
        if shift > 63:
            raise DamagedBatchError("a number has more than ten bytes")


def whole_batches(consumer: Any) -> bool:
    """Make `consumer` hand on batches for records; returns whether that can be done."""
    from kafka.record.default_records import DefaultRecordBatch

    fetcher = getattr(consumer, "_fetcher", None)
    base = getattr(fetcher, "PartitionRecords", None)
    parts = ("_maybe_uncompress", "_buffer", "_pos", "records_count", "last_offset")
    known = all(hasattr(DefaultRecordBatch, part) for part in parts)
    if fetcher is None or base is None or not hasattr(base, "_unpack_records") or not known:
        return False

    class PartitionBatches(base):  # type: ignore[misc, valid-type]
        def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
            unpacked: Iterator[Any] = super()._unpack_records(tp, _Batches(records), *deserializers)
            return unpacked

    fetcher.PartitionRecords = PartitionBatches
    return True


class _Batches:
    """Stands in for kafka-python's `MemoryRecords`."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        return _OneRecord(batch) if batch is not None and batch.magic == 2 else batch


class _OneRecord:
    """Stands in for a batch, and has but one record."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        batch = self._batch
        if not batch.records_count:
            return
        batch._maybe_uncompress()
        at_append = batch.timestamp_type == 1
        yield _Record(
            Batch(
                bytes(memoryview(batch._buffer)[batch._pos :]),
                batch.records_count,
                batch.base_offset,
                batch.first_timestamp,
                batch.max_timestamp if at_append else None,
            ),
            batch,
        )


class _Record:
    """A record as kafka-python sees it, whose value is its whole batch."""

    key = None
    headers: tuple[()] = ()
    checksum = None

    def __init__(self, value: Batch, batch: Any) -> None:
        self.value = value
        self.offset = batch.last_offset
        self.timestamp = batch.max_timestamp
        self.timestamp_type = batch.timestamp_type
        self.size_in_bytes = len(value)

    def validate_crc(self) -> bool:
        """Return that there is nothing to check: the batch has been."""
        return True
