"""Where a partition continues, and the record by which one knows that it is the same partition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from tgflow.streams.rows.row_batch import Position


class Record(Protocol):
    """A record as `KafkaConsumer.poll` returns it."""

    @property
    def offset(self) -> int:
        """Its offset in the partition."""

    @property
    def timestamp(self) -> int:
        """Its timestamp in milliseconds, -1 without one."""

    @property
    def key(self) -> bytes | None:
        """Its key."""

    @property
    def value(self) -> bytes | None:
        """Its value, None for a tombstone."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """The last record that was read: if it has changed, so has the topic.

    Args:
        offset: Its offset.
        crc: The CRC-32C of its key and value.
        t: Its own timestamp in milliseconds, -1 without one.
    """

    offset: int
    crc: int
    t: int

    @classmethod
    def from_record(cls, record: Record) -> Anchor:
        """Return the anchor that a record makes."""
        from crc32c import crc32c

        crc = crc32c(record.value or b"", crc32c(record.key or b""))
        return cls(record.offset, crc, record.timestamp)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a partition continues.

    Args:
        offset: Of the next record, or of one that was handed out in part.
        row: How many of that record's rows were handed out.
        anchor: The last record of which something was handed out; None at the beginning.
        end: Where the partition ends for this run, None if it never does.
    """

    offset: int
    row: int = 0
    anchor: Anchor | None = None
    end: int | None = None

    @property
    def start(self) -> int:
        """The offset to read from, so that the anchor comes first."""
        return self.offset if self.anchor is None else self.anchor.offset

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.end is not None and self.offset >= self.end

    def after(self, anchor: Anchor) -> Cursor:
        """Return the cursor after the whole of a record."""
        return replace(self, offset=anchor.offset + 1, row=0, anchor=anchor)

    def within(self, anchor: Anchor, row: int) -> Cursor:
        """Return the cursor before a row of a record."""
        return replace(self, offset=anchor.offset, row=row, anchor=anchor)

    def to_position(self) -> Position:
        """Return it as a checkpoint keeps it."""
        anchor = self.anchor
        return {
            "offset": self.offset,
            "row": self.row,
            "anchor": None if anchor is None else anchor.offset,
            "anchor_crc": None if anchor is None else anchor.crc,
            "anchor_t": None if anchor is None else anchor.t,
            "end": self.end,
        }

    @classmethod
    def from_position(cls, position: Position) -> Cursor:
        """Return the cursor that `to_position` wrote.

        Raises:
            ValueError: If it cannot have written it.
        """
        names = ("offset", "row", "anchor", "anchor_crc", "anchor_t", "end")
        values = [position.get(name) for name in names]
        if any(v is not None and (not isinstance(v, int) or isinstance(v, bool)) for v in values):
            raise ValueError(f"{position!r} is not a position in a Kafka partition")
        offset, row, anchor, crc, t, end = (v if isinstance(v, int) else None for v in values)
        if offset is None or row is None or offset < 0 or row < 0:
            raise ValueError(f"{position!r} is not a position in a Kafka partition")
        if anchor is None or crc is None or t is None:
            return cls(offset, row, None, end)
        return cls(offset, row, Anchor(anchor, crc, t), end)
