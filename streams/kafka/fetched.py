"""Records of one partition as columns, whether they came one by one or in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tgflow.streams.kafka.batches import Batch
from tgflow.streams.kafka.positions import Anchor
from tgflow.streams.rows.checks import Bools, Int64s


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a partition, in the order they came.

    Args:
        offsets: Their offsets, int64.
        values: Their values, None for a tombstone.
        origins: Of each a record of kafka-python, or its batch and where it lies there.
    """

    offsets: Int64s
    values: Sequence[bytes | None]
    origins: Sequence[Any]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> Records:
        return Records(self.offsets[rows], self.values[rows], self.origins[rows])

    @property
    def num_bytes(self) -> int:
        """The bytes of all values."""
        return sum(map(len, filter(None, self.values)))

    def where(self, kept: Bools) -> Records:
        """Return some of them."""
        if kept.all():
            return self
        rows = np.flatnonzero(kept).tolist()
        values = [self.values[row] for row in rows]
        return Records(self.offsets[kept], values, [self.origins[row] for row in rows])

    def anchor(self, row: int) -> Anchor:
        """Return the anchor that one of them makes."""
        origin, value, offset = self.origins[row], self.values[row], int(self.offsets[row])
        if type(origin) is tuple:  # and no namedtuple, as kafka-python's records are
            batch, start = origin
            key, t = batch.key_and_time(start)
            return Anchor.of(offset, key, t, value)
        return Anchor.of(offset, origin.key, origin.timestamp, value)


NO_RECORDS = Records(np.empty(0, dtype=np.int64), (), ())


def taken_apart(polled: Sequence[Any], start: int) -> tuple[Records, int]:
    """Return the records from offset `start` on that kafka-python polled, each beyond all before.

    Args:
        polled: Its records, the value of each its bytes or a `Batch`.
        start: Where the partition goes on.

    Returns:
        The records, and how many came that had come before. Those of a batch that begins before
        `start` and ends behind it do not count: a broker sends whole batches.

    Raises:
        DamagedBatchError: If a batch cannot be taken apart.
    """
    offsets: list[int] = []
    values: list[bytes | None] = []
    origins: list[Any] = []
    heads = 0
    for record in polled:
        if isinstance(record.value, Batch):
            found = record.value.take_apart()
            offsets += found[0]
            values += found[1]
            origins += [(record.value, at) for at in found[2]]
            if record.value.base_offset < start <= record.offset:
                heads += sum(offset < start for offset in found[0])
        else:
            offsets.append(record.offset)
            values.append(record.value)
            origins.append(record)
    columns = Records(np.array(offsets, dtype=np.int64), values, origins)
    kept = _rising(columns.offsets, start)
    return columns.where(kept), max(0, len(columns) - int(np.count_nonzero(kept)) - heads)


def _rising(offsets: Int64s, start: int) -> Bools:
    """Return which offsets are at least `start` and beyond all before them."""
    latest = np.maximum.accumulate(np.concatenate(([start - 1], offsets)))
    return np.asarray(offsets > latest[:-1], dtype=np.bool_)
