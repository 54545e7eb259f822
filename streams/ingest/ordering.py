"""Events with their sort keys, and the reorder buffer."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sortedcontainers import SortedKeyList

from tgflow.streams.rows.row_batch import EventColumns, Int64s, joined
from tgflow.streams.rows.schema import IdKind

SEQ_BITS = 44
MAX_PARTITION = (1 << (63 - SEQ_BITS)) - 1
_SEQ_MASK = (1 << SEQ_BITS) - 1
_KEY_BYTES = 24
_ARROW = ("src", "dst", "event_id")
"""Columns kept as Arrow arrays; all others are NumPy arrays."""
FANOUT_BITS = 3
"""Bits per digit of a run's length; 8 runs with equally many such digits are merged at a time."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Events, the `ranks` that order events of one tick, and optional ids for deduplication."""

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
        """Return the rows with or without event id texts; see `EventColumns.keeping_ids`."""
        events = self.events.keeping_ids(keep)
        return self if events is self.events else replace(self, events=events)

    def sizes(self) -> int | Int64s:
        """Return the bytes per row: one number if all rows are equal.

        Texts of event ids are excluded: the order must not depend on whether they are kept.
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
        """Return the columns partition, seq, those of `EventColumns`, and event_id_hash."""
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
        """Return the rows for the result of `to_batch()`."""
        names = {field.name for field in fields(EventColumns)} & {*batch.schema.names}
        found = {n: batch[n] if n in _ARROW else _to_numpy(batch[n]) for n in names}
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


def _to_numpy(array: pa.Array) -> Any:
    if pa.types.is_fixed_size_list(array.type):
        return array.flatten().to_numpy().reshape(len(array), array.type.list_size)
    return array.to_numpy()


def ranks(partition: int | Int64s, seq: Int64s) -> Int64s:
    """Return the sort key of events within a tick: first partition, then row number."""
    return (partition << SEQ_BITS) | seq


def partitions(rank: Int64s) -> Int64s:
    """Return the partitions of `ranks`."""
    return rank >> SEQ_BITS


def sequence(rank: Int64s) -> Int64s:
    """Return the row numbers within the partitions of `ranks`."""
    return rank & _SEQ_MASK


def total_bytes(sizes: int | Int64s, num: int) -> int:
    """Return the total bytes of `num` rows of these sizes."""
    return sizes * num if isinstance(sizes, int) else int(sizes.sum())


def no_rows(id_kind: IdKind, x_dim: int) -> Rows:
    """Return empty rows, for a stream without optional columns."""
    none = np.empty(0, np.int64)
    ids = pa.array([], pa.int64() if id_kind == "int" else pa.string())
    x = np.empty((0, x_dim), np.float32) if x_dim else None
    return Rows(none, EventColumns(ids, ids, none, None, x))


def concat(parts: Sequence[Rows]) -> Rows:
    """Concatenate at least one part; all have the same columns."""
    if len(parts) == 1:
        return parts[0]
    ids = [part.event_ids for part in parts if part.event_ids is not None]
    return Rows(
        joined([part.rank for part in parts]),
        EventColumns.concat([part.events for part in parts]),
        joined(ids) if ids else None,
    )


def per_partition(rank: Int64s, sizes: int | Int64s = 0) -> Iterable[tuple[int, int, int]]:
    """Return for each partition among the rows its number, its rows, and their bytes."""
    if not len(rank):
        return []
    first, last = int(rank.min()) >> SEQ_BITS, int(rank.max()) >> SEQ_BITS
    if first == last:
        return [(first, len(rank), total_bytes(sizes, len(rank)))]
    of = partitions(rank) - first
    counts = np.bincount(of)
    totals = counts * sizes if isinstance(sizes, int) else np.bincount(of, sizes).astype(np.int64)
    found = np.flatnonzero(counts)
    columns = found + first, counts[found], totals[found]
    return zip(*(column.tolist() for column in columns), strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class SortedRun:
    """Rows sorted by (t, rank), and the length of the arrays that they may be a view of."""

    rows: Rows
    room: int

    def __len__(self) -> int:
        return len(self.rows)

    def tail(self, size: int) -> SortedRun:
        """Return all but the first `size` rows; copies when few are left, to free the rest."""
        if 4 * (len(self) - size) < self.room:
            return SortedRun(self.rows.take(np.arange(size, len(self))), len(self) - size)
        return SortedRun(self.rows.take(slice(size, None)), self.room)


class ReorderBuffer:
    """Buffer of events that others may still precede.

    The order is (t, partition, row number in the partition). Adding `n` rows costs about
    `n * log(size / n)`, however large the buffer is; a release costs `n` and a little for each of
    the few runs that contain the rows.
    """

    def __init__(self) -> None:
        self._runs = SortedKeyList(key=lambda run: int(run.rows.t[0]))
        self.num_rows: Counter[int] = Counter()
        """Rows of each partition."""
        self.num_bytes: Counter[int] = Counter()
        """Bytes of the rows of each partition."""

    def __len__(self) -> int:
        return self.num_rows.total()

    def add(self, rows: Rows) -> None:
        """Add rows in any order."""
        if not len(rows):
            return
        self._count(rows, 1)
        self._runs.add(SortedRun(merged([rows]), len(rows)))
        while True:  # merge 8 runs of about equal length, to keep their number low
            alike: defaultdict[int, list[SortedRun]] = defaultdict(list)
            for run in self._runs:
                alike[len(run).bit_length() // FANOUT_BITS].append(run)
            full = [runs for runs in alike.values() if len(runs) >= 1 << FANOUT_BITS]
            if not full:
                return
            for run in full[0]:
                self._runs.remove(run)
            whole = merged([run.rows for run in full[0]])
            self._runs.add(SortedRun(whole, len(whole)))

    def release(self, watermark: int) -> Rows | None:
        """Remove all rows with `t < watermark` and return them in order; None if there are none.

        They may share memory with rows still in the buffer, which never changes.
        """
        num_runs = self._runs.bisect_key_left(watermark)
        touched = list(self._runs[:num_runs])
        del self._runs[:num_runs]
        heads = []
        for run in touched:
            size = int(np.searchsorted(run.rows.t, watermark))
            heads.append(run.rows.take(slice(0, size)))
            if size < len(run):
                self._runs.add(run.tail(size))
        if not heads:
            return None
        rows = merged(heads)
        self._count(rows, -1)
        return rows

    def rows_since(self, partition: int, t: int) -> list[Rows]:
        """Return the rows of a partition at or after `t`, unordered."""
        found = []
        for run in self._runs:
            rows = np.flatnonzero((partitions(run.rows.rank) == partition) & (run.rows.t >= t))
            if len(rows):
                found.append(run.rows.take(rows))
        return found

    def held(self) -> tuple[SortedRun, ...]:
        """Return the current content as an immutable snapshot."""
        return tuple(self._runs)

    def _count(self, rows: Rows, sign: int) -> None:
        for partition, num_rows, num_bytes in per_partition(rows.rank, rows.sizes()):
            self.num_rows[partition] += sign * num_rows
            self.num_bytes[partition] += sign * num_bytes


def merged(parts: Sequence[Rows]) -> Rows:
    """Merge at least one part into one, sorted by (t, rank)."""
    rows = concat(sorted(parts, key=lambda part: (part.t[0], part.rank[0])))
    t, rank = rows.t, rows.rank
    if _is_sorted(t, rank):
        return rows
    order = np.argsort(t, kind="stable")  # one sort suffices if equal times are in order
    if not _is_sorted(t[order], rank[order]):
        order = np.lexsort((rank, t))
    return rows.take(order)


def _is_sorted(t: Int64s, rank: Int64s) -> bool:
    earlier, tied = t[:-1] < t[1:], t[:-1] == t[1:]
    return bool((earlier | (tied & (rank[:-1] < rank[1:]))).all())
