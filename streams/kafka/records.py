"""From the records of one partition to its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from tgflow.streams.errors import RowFault
from tgflow.streams.kafka.chunk import Chunk
from tgflow.streams.kafka.codecs import Codec, Decoded, make_codec
from tgflow.streams.kafka.config import KafkaConfig
from tgflow.streams.kafka.cursor import Anchor, Cursor, Record
from tgflow.streams.rows.checks import Fault, Int64s
from tgflow.streams.rows.columns import EventColumns
from tgflow.streams.rows.row_batch import Origin, PolledRows, RowBatch
from tgflow.streams.rows.validate import RowSchema, validate

MAX_ROWS = 1 << 16
"""Rows that are handed on at most at a time."""


class RecordDecoder:
    """Decodes the records of a topic.

    Args:
        config: The topic and its schema.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._topic, self._limit = config.topic, config.checks.max_bytes
        self._codec = make_codec(config.codec, config.schema)

    def decode(self, chunk: Chunk, skip: int) -> list[PolledRows]:
        """Return the rows of `chunk`, a bounded number at a time; at least one, perhaps without.

        Args:
            chunk: Records of one partition.
            skip: How many rows of its first record were handed out before.
        """
        counts = dict(chunk.counts)
        records = [record for record in chunk.records if record.value is not None]
        values = [record.value for record in records if record.value is not None]
        if len(values) < len(chunk.records):
            counts["tombstone"] = len(chunk.records) - len(values)
        decoded = self._decode(values)
        empty = len(decoded.num_rows) - int(np.count_nonzero(decoded.num_rows))
        if empty:
            counts["empty"] = empty
        rows = _validate(decoded, self._codec.schema)
        origins = _Origins(self._topic, chunk, records, np.cumsum(decoded.num_rows), self._codec)
        starts = range(skip, max(rows.num_rows, skip + 1), MAX_ROWS)
        pieces = [rows.piece(at, min(at + MAX_ROWS, rows.num_rows), origins) for at in starts]
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
        large = {int(ends[i]) - 1: self._too_large(values[i]) for i in np.flatnonzero(~fits)}
        others = np.delete(np.arange(int(ends[-1])), list(large))
        faults = {int(others[row]): fault for row, fault in decoded.faults.items()}
        return Decoded(decoded.batches, num_rows, faults | large)

    def _too_large(self, value: bytes) -> Fault:
        text = f"the record has {len(value)} bytes, more than max_record_bytes={self._limit}"
        return "too_large", text


def _validate(decoded: Decoded, schema: RowSchema) -> _Rows:
    """Check the rows that could be decoded, and number them among all."""
    num_rows = int(decoded.num_rows.sum())
    numbers = np.delete(np.arange(num_rows), list(decoded.faults))
    faults = dict(decoded.faults)
    parts: list[RowBatch] = []
    done = 0
    for batch in decoded.batches:
        part = validate(batch, schema, index=numbers[done : done + len(batch)])
        done += len(batch)
        faults |= {fault.row: (fault.code, fault.text) for fault in part.faults}
        parts.append(part)
    ids = [part.event_ids for part in parts if part.event_ids is not None]
    return _Rows(
        EventColumns.concat([part.events for part in parts]),
        np.concatenate([part.index for part in parts if part.index is not None])
        if faults
        else None,
        np.concatenate(ids) if ids else None,
        faults,
        num_rows,
    )


@dataclass(frozen=True, slots=True)
class _Origins:
    """Where the rows of a chunk came from; `ends` are the numbers after each record's last row."""

    topic: str
    chunk: Chunk
    records: Sequence[Record]
    ends: Int64s
    codec: Codec

    def origin(self, row: int) -> Origin:
        """Return where a row came from."""
        record, within = self._find(row)
        value = self.records[record].value or b""
        where: dict[str, int | str] = {"topic": self.topic, "partition": self.chunk.partition}
        where |= {"offset": self.records[record].offset, "row": within}
        is_alone = self.ends[record] == 1 + (self.ends[record - 1] if record else 0)
        return Origin(where, value if is_alone else self.codec.raw(value, within))

    def before(self, row: int) -> Cursor:
        """Return where the partition continues at a row, or behind all of them."""
        last = self.chunk.cursor
        if not len(self.ends) or row >= self.ends[-1]:
            return last
        record, within = self._find(row)
        if within:
            return last.within(Anchor.from_record(self.records[record]), within)
        return last.after(Anchor.from_record(self.records[record - 1]))

    def _find(self, row: int) -> tuple[int, int]:
        """Return the record of a row, and the row's number in it."""
        record = int(np.searchsorted(self.ends, row, side="right"))
        return record, row - (int(self.ends[record - 1]) if record else 0)


@dataclass(frozen=True, slots=True)
class _Rows:
    """All rows of a chunk, good and bad."""

    events: EventColumns
    index: Int64s | None
    event_ids: Int64s | None
    faults: Mapping[int, Fault]
    num_rows: int

    def piece(self, start: int, stop: int, origins: _Origins) -> PolledRows:
        """Return the rows `[start, stop)`."""
        part = slice(start, stop)
        if self.index is not None:
            part = slice(*(int(i) for i in np.searchsorted(self.index, [start, stop])))
        faults = sorted(item for item in self.faults.items() if start <= item[0] < stop)
        rows = RowBatch(
            events=self.events.take(part),
            index=None if self.index is None else self.index[part] - start,
            faults=[RowFault(row - start, *fault) for row, fault in faults],
            num_rows=max(0, stop - start),
            locate=lambda row: origins.origin(start + row),
            position=origins.before(stop).to_position(),
            event_ids=None if self.event_ids is None else self.event_ids[part],
        )
        return PolledRows(origins.chunk.partition, rows)
