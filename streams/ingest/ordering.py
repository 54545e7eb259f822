"""The order of events, and the reorder buffer."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sortedcontainers import SortedKeyList

from tgflow.streams.rows.row_batch import EventColumns, Int64s
from tgflow.streams.rows.schema import IdKind

SEQ_BITS = 44
MAX_PARTITION = (1 << (63 - SEQ_BITS)) - 1
_SEQ_MASK = (1 << SEQ_BITS) - 1
_KEYS = ("t", "rank", "event_id_hash")
_KEY_BYTES = 24
_ARROW = ("src", "dst", "event_id")
"""Columns kept as Arrow arrays; all others are NumPy arrays."""
FANOUT_BITS = 3
"""Bits per digit of a run's length; 8 runs with equally many such digits are merged at a time."""


def ranks(partition: int | Int64s, seq: Int64s) -> Int64s:
    """Return the sort key of events within a tick: first partition, then row number."""
    return (partition << SEQ_BITS) | seq


def partitions(rank: Int64s) -> Int64s:
    """Return the partitions of `ranks`."""
    return rank >> SEQ_BITS


def sequence(rank: Int64s) -> Int64s:
    """Return the row numbers within the partitions of `ranks`."""
    return rank & _SEQ_MASK


def no_rows(id_kind: IdKind, x_dim: int) -> EventColumns:
    """Return no events, for a stream without optional columns."""
    none = np.empty(0, np.int64)
    ids = pa.array([], pa.int64() if id_kind == "int" else pa.string())
    x = np.empty((0, x_dim), np.float32) if x_dim else None
    return EventColumns(ids, ids, none, None, x, rank=none)


def to_arrow(rows: EventColumns) -> pa.RecordBatch:
    """Return partition and seq of ranked events, and their other columns."""
    columns = rows.columns()
    rank = columns.pop("rank")
    found = {"partition": partitions(rank).astype(np.int32), "seq": sequence(rank), **columns}
    return pa.record_batch({name: _to_arrow(column) for name, column in found.items()})


def from_arrow(batch: pa.RecordBatch) -> EventColumns:
    """Return the events for the result of `to_arrow`."""
    names = {field.name for field in fields(EventColumns)} & {*batch.schema.names}
    found = {n: batch[n] if n in _ARROW else _to_numpy(batch[n]) for n in names}
    if missing := {"src", "dst", "t"} - names:
        raise KeyError(min(missing))
    rank = ranks(batch["partition"].to_numpy().astype(np.int64), batch["seq"].to_numpy())
    return EventColumns(**{"label": None, "x": None} | found, rank=rank)


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


def sizes_of(rows: EventColumns) -> Int64s:
    """Return the bytes of each row.

    Texts of event ids are excluded: the order must not depend on whether they are kept.
    """
    numbers = [c for n, c in rows.columns().items() if n not in _KEYS and isinstance(c, np.ndarray)]
    fixed: int = _KEY_BYTES + sum(c.itemsize * math.prod(c.shape[1:]) for c in numbers)
    if pa.types.is_integer(rows.src.type):
        return np.full(len(rows), fixed + 16)
    lengths = pc.add(pc.binary_length(rows.src), pc.binary_length(rows.dst))
    sizes: Int64s = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return fixed + 8 + sizes


def per_partition(rank: Int64s, sizes: Int64s | None = None) -> Iterable[tuple[int, int, int]]:
    """Return for each partition among the rows its number, its rows, and their bytes."""
    of = partitions(rank)
    first = of.min(initial=MAX_PARTITION)
    counts = np.bincount(of - first)
    totals = counts if sizes is None else np.bincount(of - first, sizes).astype(np.int64)
    found = np.flatnonzero(counts)
    columns = found + first, counts[found], totals[found]
    return zip(*(column.tolist() for column in columns), strict=True)


class ReorderBuffer:
    """Buffer of events that others may still precede.

    The order is (t, partition, row number in the partition). Adding `n` rows costs about
    `n * log(size / n)`, however large the buffer is; a release costs `n` and a little for each of
    the few runs that contain the rows.
    """

    def __init__(self) -> None:
        self._runs = SortedKeyList(key=lambda run: int(run[0].t[0]))
        """Sorted rows, with the length of the arrays that they may be a view of."""
        self.num_rows: Counter[int] = Counter()
        """Rows of each partition."""
        self.num_bytes: Counter[int] = Counter()
        """Bytes of the rows of each partition."""

    def __len__(self) -> int:
        return self.num_rows.total()

    @property
    def first_t(self) -> int | None:
        """Time of the first row, None without rows."""
        return int(self._runs[0][0].t[0]) if self._runs else None

    def add(self, rows: EventColumns) -> None:
        """Add rows in any order."""
        if not len(rows):
            return
        self._count(rows, 1)
        self._runs.add((merged([rows]), len(rows)))
        while True:  # merge 8 runs of about equal length, to keep their number low
            alike: defaultdict[int, list[tuple[EventColumns, int]]] = defaultdict(list)
            for run in self._runs:
                alike[len(run[0]).bit_length() // FANOUT_BITS].append(run)
            full = [runs for runs in alike.values() if len(runs) >= 1 << FANOUT_BITS]
            if not full:
                return
            for run in full[0]:
                self._runs.remove(run)
            whole = merged([rows for rows, _ in full[0]])
            self._runs.add((whole, len(whole)))

    def release(self, watermark: int) -> EventColumns | None:
        """Remove all rows with `t < watermark` and return them in order; None if there are none.

        They may share memory with rows still in the buffer, which never changes.
        """
        num_runs = self._runs.bisect_key_left(watermark)
        touched = list(self._runs[:num_runs])
        del self._runs[:num_runs]
        heads = []
        for rows, room in touched:
            size = int(np.searchsorted(rows.t, watermark))
            heads.append(rows.take(slice(0, size)))
            if left := len(rows) - size:  # copies when few are left, to free the rest
                is_few = 4 * left < room
                rest = rows.take(np.arange(size, len(rows)) if is_few else slice(size, None))
                self._runs.add((rest, left if is_few else room))
        if not heads:
            return None
        released = merged(heads)
        self._count(released, -1)
        return released

    def rows_since(self, partition: int, t: int) -> list[EventColumns]:
        """Return the rows of a partition at or after `t`, unordered."""
        found = []
        for run in self.held():
            rows = np.flatnonzero((partitions(run.rank) == partition) & (run.t >= t))
            if len(rows):
                found.append(run.take(rows))
        return found

    def held(self) -> tuple[EventColumns, ...]:
        """Return the current content as an immutable snapshot: runs of sorted rows."""
        return tuple(rows for rows, _ in self._runs)

    def _count(self, rows: EventColumns, sign: int) -> None:
        for partition, num_rows, num_bytes in per_partition(rows.rank, sizes_of(rows)):
            self.num_rows[partition] += sign * num_rows
            self.num_bytes[partition] += sign * num_bytes


def merged(parts: Sequence[EventColumns]) -> EventColumns:
    """Merge at least one part into one, sorted by (t, rank)."""
    rows = EventColumns.concat(sorted(parts, key=lambda part: (part.t[0], part.rank[0])))
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
