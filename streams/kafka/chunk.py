"""Records of one partition, as the poller hands them to the decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tgflow.streams.kafka.cursor import Cursor, Record


@dataclass(frozen=True)
class Chunk:
    """Records of one partition that follow each other.

    Args:
        partition: The partition.
        records: Its records, increasing in offset; may be none.
        cursor: Where the partition continues after them.
        counts: What else was met, such as {"repeated": 2} or {"gap": 40}.
        gaps: The offsets `[begin, end)` that had expired before they could be read.
    """

    partition: int
    records: Sequence[Record]
    cursor: Cursor
    counts: Mapping[str, int]
    gaps: Sequence[tuple[int, int]] = ()

    @cached_property
    def num_bytes(self) -> int:
        """The bytes of the records' values."""
        return sum(len(record.value) for record in self.records if record.value is not None)


def new_records(polled: Sequence[Record], start: int) -> list[Record]:
    """Return the records with an offset of at least `start` and beyond all before them."""
    records: list[Record] = []
    following = start
    for record in polled:
        if record.offset >= following:
            records.append(record)
            following = record.offset + 1
    return records
