"""From the records of one partition to its arrivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tgflow.streams.kafka.chunk import Chunk
from tgflow.streams.kafka.codecs import codec_of
from tgflow.streams.kafka.codecs.codec import Codec, Parsed
from tgflow.streams.kafka.config import KafkaConfig
from tgflow.streams.kafka.cursor import Anchor, Cursor, Record
from tgflow.streams.rows.checks import Fault, Int64s
from tgflow.streams.rows.columns import EventColumns
from tgflow.streams.rows.event_ids import hashes
from tgflow.streams.rows.row_batch import BadRow, Origin, PolledRows
from tgflow.streams.rows.validate import RowSchema, validate

MAX_ROWS = 1 << 16
"""Rows that arrivals have at most."""


class RecordDecoder:
    """Decodes the records of a topic.

    Args:
        config: The topic and its schema.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._topic, self._form = config.topic, config.form
        self._event_id, self._limit = config.event_id, config.checks.max_record_bytes
        self._codec = codec_of(config)

    def arrivals(self, chunk: Chunk, skip: int) -> list[PolledRows]:
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
        parsed = self._parse(values)
        empty = len(parsed.num_rows) - int(np.count_nonzero(parsed.num_rows))
        if empty:
            counts["empty"] = empty
        rows = self._rows(parsed)
        cursors = _Places(self._topic, chunk, records, np.cumsum(parsed.num_rows), self._codec)
        starts = range(skip, max(rows.num_rows, skip + 1), MAX_ROWS)
        pieces = [rows.piece(at, min(at + MAX_ROWS, rows.num_rows), cursors) for at in starts]
        pieces[0] = replace(pieces[0], counts=counts, gaps=chunk.gaps)
        return pieces

    def _parse(self, values: list[bytes]) -> Parsed:
        """Return the rows of records; those that are too large are not even looked at."""
        if not values or max(map(len, values)) <= self._limit:
            return self._codec.parse(values)
        fits = np.fromiter(map(len, values), dtype=np.int64) <= self._limit
        parsed = self._codec.parse([value for value, fit in zip(values, fits, strict=True) if fit])
        num_rows = np.ones(len(values), dtype=np.int64)
        num_rows[fits] = parsed.num_rows
        ends = np.cumsum(num_rows)
        large = {int(ends[i]) - 1: self._too_large(values[i]) for i in np.flatnonzero(~fits)}
        others = np.delete(np.arange(int(ends[-1])), list(large))
        faults = {int(others[row]): fault for row, fault in parsed.faults.items()}
        return Parsed(parsed.batches, num_rows, faults | large)

    def _too_large(self, value: bytes) -> Fault:
        text = f"the record has {len(value)} bytes, more than max_record_bytes={self._limit}"
        return "too_large", text

    def _rows(self, parsed: Parsed) -> _Rows:
        """Check the rows that could be read, and number them among all."""
        num_rows = int(parsed.num_rows.sum())
        read = np.delete(np.arange(num_rows), list(parsed.faults))
        faults = dict(parsed.faults)
        parts: list[_Checked] = []
        done = 0
        for batch in parsed.batches or [_no_rows(self._form, self._event_id)]:
            part = _checked(batch, read[done : done + len(batch)], self._form, self._event_id)
            faults |= part.faults
            parts.append(part)
            done += len(batch)
        whole = parts[0] if len(parts) == 1 else _joined(parts)
        index = whole.index if faults else None
        return _Rows(whole.events, index, whole.event_ids, faults, num_rows)


@dataclass(frozen=True, slots=True)
class _Checked:
    """The good rows of a batch, their numbers, and what is wrong with the others."""

    events: EventColumns
    index: Int64s
    event_ids: Int64s | None
    faults: Mapping[int, Fault]


def _checked(
    batch: pa.RecordBatch, number: Int64s, form: RowSchema, event_id: str | None
) -> _Checked:
    validated, ids = validate(batch, form), None
    if event_id is not None:
        validated, ids = hashes(batch[event_id], event_id, validated)
    index = number if validated.index is None else number[validated.index]
    faults = {int(number[fault.row]): (fault.code, fault.text) for fault in validated.faults}
    return _Checked(validated.events, index, ids, faults)


def _joined(parts: Sequence[_Checked]) -> _Checked:
    events = [part.events for part in parts]
    labels = [part.label for part in events if part.label is not None]
    x = [part.x for part in events if part.x is not None]
    ids = [part.event_ids for part in parts if part.event_ids is not None]
    whole = EventColumns(
        pa.concat_arrays([part.src for part in events]),
        pa.concat_arrays([part.dst for part in events]),
        np.concatenate([part.t for part in events]),
        np.concatenate(labels) if labels else None,
        np.concatenate(x) if x else None,
    )
    index = np.concatenate([part.index for part in parts])
    return _Checked(whole, index, np.concatenate(ids) if ids else None, {})


def _no_rows(form: RowSchema, event_id: str | None) -> pa.RecordBatch:
    """Return a batch of no rows that passes every check."""
    text = form.ids == "string"
    columns = form.columns
    arrays = {name: pa.array([], pa.int64()) for name in columns.names}
    arrays |= dict.fromkeys((columns.src, columns.dst), pa.array([], pa.string())) if text else {}
    if event_id:
        arrays.setdefault(event_id, pa.array([], pa.string()))
    for name, width in zip(columns.features, form.widths, strict=True):
        kind = pa.float32() if width == 1 else pa.list_(pa.float32(), width)
        arrays[name] = pa.array([], kind)
    return pa.RecordBatch.from_pydict(arrays)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the rows of a chunk stand: of each record the number of the row after its last."""

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

    def piece(self, start: int, stop: int, cursors: _Places) -> PolledRows:
        """Return the rows `[start, stop)` as arrivals."""
        part = slice(start, stop)
        if self.index is not None:
            part = slice(*(int(i) for i in np.searchsorted(self.index, [start, stop])))
        faults = sorted(item for item in self.faults.items() if start <= item[0] < stop)
        return PolledRows(
            partition=cursors.chunk.partition,
            events=self.events.take(part),
            index=None if self.index is None else self.index[part] - start,
            bad=[BadRow(row - start, *fault, cursors.origin(row)) for row, fault in faults],
            num_rows=max(0, stop - start),
            position=cursors.before(stop).to_position(),
            origin=self._origin(part.start, start, cursors),
            counts={},
            event_ids=None if self.event_ids is None else self.event_ids[part],
        )

    def _origin(self, first: int, start: int, cursors: _Places) -> Callable[[int], Origin]:
        index = self.index
        if index is None:
            return lambda i: cursors.origin(start + i)
        return lambda i: cursors.origin(int(index[first + i]))
