"""Events with their place in the order, as they are held back, logged and saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.streams.rows.checks import Int64s
from tgflow.streams.rows.columns import EventColumns
from tgflow.streams.rows.schema import IdKind

SEQ_BITS = 44
MAX_PARTITION = (1 << (63 - SEQ_BITS)) - 1
_SEQ_MASK = (1 << SEQ_BITS) - 1
_KEY_BYTES = 24


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

    def take(self, rows: Int64s) -> Rows:
        """Return the rows numbered so, in that order."""
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
        fixed = (
            _KEY_BYTES + (0 if e.label is None else 8) + (0 if e.x is None else 4 * e.x.shape[1])
        )
        if pa.types.is_integer(e.src.type):
            return fixed + 16
        lengths = pc.add(pc.binary_length(e.src), pc.binary_length(e.dst))
        sizes: Int64s = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        return fixed + 8 + sizes

    def to_batch(self) -> pa.RecordBatch:
        """Return them as columns: partition, seq, src, dst, t and, where there, label, x, ids."""
        e = self.events
        columns = {
            "partition": pa.array(partitions(self.rank).astype(np.int32)),
            "seq": pa.array(sequence(self.rank)),
            "src": e.src,
            "dst": e.dst,
            "t": pa.array(e.t),
        }
        if e.label is not None:
            columns["label"] = pa.array(e.label)
        if e.x is not None:
            values = pa.array(np.ascontiguousarray(e.x).reshape(-1))
            columns["x"] = pa.FixedSizeListArray.from_arrays(values, e.x.shape[1])
        if self.event_ids is not None:
            columns["event_id"] = pa.array(self.event_ids)
        if e.event_id is not None:
            columns["event_id_text"] = e.event_id
        return pa.record_batch(columns)

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch) -> Rows:
        """Return the rows that gave `to_batch()`.

        Raises:
            KeyError: If a column is missing.
        """
        names = set(batch.schema.names)

        def ints(name: str) -> Int64s | None:
            return batch[name].to_numpy().astype(np.int64, copy=False) if name in names else None

        x = None
        if "x" in names:
            x = batch["x"].flatten().to_numpy().reshape(len(batch), batch["x"].type.list_size)
        t = batch["t"].to_numpy()
        texts = batch["event_id_text"] if "event_id_text" in names else None
        events = EventColumns(batch["src"], batch["dst"], t, ints("label"), x, texts)
        rank = ranks(batch["partition"].to_numpy().astype(np.int64), batch["seq"].to_numpy())
        return cls(rank, events, ints("event_id"))


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
        np.concatenate([part.rank for part in parts]),
        EventColumns.concat([part.events for part in parts]),
        np.concatenate(ids) if ids else None,
    )
