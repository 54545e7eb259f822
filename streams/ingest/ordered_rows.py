"""Events with their place in the order, as they are held back, logged and saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.streams.rows.checks import Int64s
from tgflow.streams.rows.columns import EventColumns, joined
from tgflow.streams.rows.schema import IdKind

SEQ_BITS = 44
MAX_PARTITION = (1 << (63 - SEQ_BITS)) - 1
_SEQ_MASK = (1 << SEQ_BITS) - 1
_KEY_BYTES = 24
_ARROW = ("src", "dst", "event_id")
"""Columns that stay Arrow arrays; all others are NumPy arrays."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Events, and what decides between two of one tick.

    Args:
        rank: Partition and number of the row within it as one number, int64; see `ranks`.
        events: The events.
        event_ids: Ids by which duplicates are found, int64, or None.
    """

    rank: Int64s
    events: EventColumns
    event_ids: Int64s | None = None

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def t(self) -> Int64s:
        """Times in ticks."""
        return self.events.t

    def take(self, rows: slice | Int64s) -> Rows:
        """Return the rows at `rows`, in that order; a slice with step 1 copies nothing."""
        ids = None if self.event_ids is None else self.event_ids[rows]
        return Rows(self.rank[rows], self.events.take(rows), ids)

    def keeping_ids(self, keep: bool) -> Rows:
        """Return them with the texts of their ids, or without; see `EventColumns.keeping_ids`."""
        events = self.events.keeping_ids(keep)
        return self if events is self.events else replace(self, events=events)

    def sizes(self) -> int | Int64s:
        """Return how many bytes each row takes: one number if all take the same.

        Texts of event ids do not count: whether they are kept must not change any order.
        """
        e = self.events
        numbers = [c for n, c in e.columns().items() if n != "t" and isinstance(c, np.ndarray)]
        fixed: int = _KEY_BYTES + sum(c.itemsize * math.prod(c.shape[1:]) for c in numbers)
        if pa.types.is_integer(e.src.type):
            return fixed + 16
        lengths = pc.add(pc.binary_length(e.src), pc.binary_length(e.dst))
        sizes: Int64s = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        return fixed + 8 + sizes

    def to_batch(self) -> pa.RecordBatch:
        """Return them as columns: partition, seq, those of `EventColumns`, and event_id_hash."""
        columns: dict[str, Any] = {
            "partition": partitions(self.rank).astype(np.int32),
            "seq": sequence(self.rank),
            **self.events.columns(),
        }
        if self.event_ids is not None:
            columns["event_id_hash"] = self.event_ids
        return pa.record_batch({name: _to_arrow(column) for name, column in columns.items()})

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch) -> Rows:
        """Return the rows that gave `to_batch()`.

        Raises:
            KeyError: If a column is missing.
        """
        names = {field.name for field in fields(EventColumns)} & {*batch.schema.names}
        found = {name: _from_arrow(batch[name], name not in _ARROW) for name in names}
        if missing := {"src", "dst", "t"} - names:
            raise KeyError(min(missing))
        events = EventColumns(**{"label": None, "x": None} | found)
        rank = ranks(batch["partition"].to_numpy().astype(np.int64), batch["seq"].to_numpy())
        has_ids = "event_id_hash" in batch.schema.names
        return cls(rank, events, batch["event_id_hash"].to_numpy() if has_ids else None)


def _to_arrow(column: Any) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if column.ndim == 1:
        return pa.array(column)
    values = pa.array(np.ascontiguousarray(column).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, column.shape[1])


def _from_arrow(array: pa.Array, is_number: bool) -> Any:
    if not is_number:
        return array
    if pa.types.is_fixed_size_list(array.type):
        return array.flatten().to_numpy().reshape(len(array), array.type.list_size)
    return array.to_numpy()


def ranks(partition: int | Int64s, seq: Int64s) -> Int64s:
    """Return what orders events of one tick: first by partition, then by number within it."""
    return (partition << SEQ_BITS) | seq


def partitions(rank: Int64s) -> Int64s:
    """Return the partitions of `ranks`."""
    return rank >> SEQ_BITS


def sequence(rank: Int64s) -> Int64s:
    """Return the numbers of the rows within their partitions, of `ranks`."""
    return rank & _SEQ_MASK


def total_bytes(sizes: int | Int64s, num: int) -> int:
    """Return how many bytes `num` rows of these sizes take."""
    return sizes * num if isinstance(sizes, int) else int(sizes.sum())


def no_rows(id_kind: IdKind, x_dim: int) -> Rows:
    """Return no rows, of a stream without labels."""
    none = np.empty(0, np.int64)
    ids = pa.array([], pa.int64() if id_kind == "int" else pa.string())
    x = np.empty((0, x_dim), np.float32) if x_dim else None
    return Rows(none, EventColumns(ids, ids, none, None, x))


def concat(parts: Sequence[Rows]) -> Rows:
    """Return at least one part, one after another; all have the same columns."""
    if len(parts) == 1:
        return parts[0]
    ids = [part.event_ids for part in parts if part.event_ids is not None]
    return Rows(
        joined([part.rank for part in parts]),
        EventColumns.concat([part.events for part in parts]),
        joined(ids) if ids else None,
    )
