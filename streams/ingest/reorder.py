"""Holds events back until nothing earlier can come, and hands them on in their order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from sortedcontainers import SortedKeyList

from tgflow.streams.ingest.ordered_rows import SEQ_BITS, Rows, concat, partitions, total_bytes
from tgflow.streams.rows.checks import Int64s

FANOUT_BITS = 3
"""Runs whose lengths have equally many digits to this base of 2 are merged, 8 at a time."""
LONG_RUN = 4096
"""From which average length on runs that do not overlap are released one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class SortedRun:
    """Rows sorted by (t, rank)."""

    rows: Rows
    room: int
    """Length of the arrays that hold the rows, of which they may be a view."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def first(self) -> tuple[int, int]:
        """The key it begins with."""
        return int(self.rows.t[0]), int(self.rows.rank[0])

    @property
    def last(self) -> tuple[int, int]:
        """The key it ends with."""
        return int(self.rows.t[-1]), int(self.rows.rank[-1])

    @property
    def level(self) -> int:
        """Number of base-8 digits of its length."""
        return len(self).bit_length() // FANOUT_BITS

    def tail(self, size: int) -> SortedRun:
        """Return all but the first `size` rows; a copy if few are left, to free the others."""
        if 4 * (len(self) - size) < self.room:
            return SortedRun(self.rows.take(np.arange(size, len(self))), len(self) - size)
        return SortedRun(self.rows.take(slice(size, None)), self.room)


@dataclass(frozen=True, slots=True)
class BufferSnapshot:
    """Immutable contents of a buffer at one moment."""

    runs: tuple[SortedRun, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def rows(self) -> Rows | None:
        """Return the rows in their order, None if there are none."""
        return merged([run.rows for run in self.runs]) if self.runs else None


class ReorderBuffer:
    """Events that may still be preceded by others.

    The order is by (t, partition, number of the row in the partition). Adding `n` rows costs about
    `n` times the logarithm of how many `n` are in the buffer, however large it is; releasing them,
    `n` and a little for each of the few runs that they are spread over.
    """

    def __init__(self) -> None:
        self._runs = SortedKeyList(key=lambda run: run.first[0])
        self._num_rows: Counter[int] = Counter()
        self._num_bytes: Counter[int] = Counter()
        self._size = 0
        self.num_bytes = 0
        """Bytes of the rows in it."""

    def __len__(self) -> int:
        return self._size

    def num_rows(self, partition: int) -> int:
        """Return how many rows of a partition are in it."""
        return self._num_rows[partition]

    def bytes_of(self, partition: int) -> int:
        """Return how many bytes the rows of a partition take."""
        return self._num_bytes[partition]

    def add(self, rows: Rows) -> None:
        """Add rows in any order."""
        if not len(rows):
            return
        self._tally(rows, 1)
        self._runs.add(SortedRun(_sorted(rows), len(rows)))
        self._merge_alike()

    def release(self, watermark: int) -> list[Rows]:
        """Remove all rows with `t < watermark` and return them in order, in pieces.

        Long runs that do not overlap, as those of a file in order, come one after the other without
        a copy. Pieces may share memory with rows still in the buffer, which never changes.
        """
        num_runs = self._runs.bisect_key_left(watermark)
        touched = list(self._runs[:num_runs])
        del self._runs[:num_runs]
        heads = []
        for run in touched:
            size = int(np.searchsorted(run.rows.t, watermark))
            heads.append(SortedRun(run.rows.take(slice(0, size)), run.room))
            if size < len(run):
                self._runs.add(run.tail(size))
        pieces = _in_sequence(heads)
        for rows in pieces:
            self._tally(rows, -1)
        return pieces

    def rows_since(self, partition: int, t: int) -> Rows | None:
        """Return the rows of a partition at or after `t`, None if there are none."""
        found = []
        for run in self._runs:
            rows = np.flatnonzero((partitions(run.rows.rank) == partition) & (run.rows.t >= t))
            if len(rows):
                found.append(run.rows.take(rows))
        return merged(found) if found else None

    def held(self) -> BufferSnapshot:
        """Return what is in it now."""
        return BufferSnapshot(tuple(self._runs))

    def _tally(self, rows: Rows, sign: int) -> None:
        """Count rows that came in, or with sign -1 went out."""
        sizes = rows.sizes()
        self._size += sign * len(rows)
        self.num_bytes += sign * total_bytes(sizes, len(rows))
        for partition, num_rows, num_bytes in per_partition(rows.rank, sizes):
            self._num_rows[partition] += sign * num_rows
            self._num_bytes[partition] += sign * num_bytes

    def _merge_alike(self) -> None:
        """Merge runs of about one length, so that there are few."""
        while True:
            levels = Counter(run.level for run in self._runs)
            full = [level for level, count in levels.items() if count >= 1 << FANOUT_BITS]
            if not full:
                return
            alike = [run for run in self._runs if run.level == full[0]]
            for run in alike:
                self._runs.remove(run)
            rows = merged([run.rows for run in alike])
            self._runs.add(SortedRun(rows, len(rows)))


def per_partition(rank: Int64s, sizes: int | Int64s = 0) -> Iterable[tuple[int, int, int]]:
    """Return which partitions the rows are of: the partition, its rows, and their bytes."""
    if not len(rank):
        return []
    first, last = int(rank.min()) >> SEQ_BITS, int(rank.max()) >> SEQ_BITS
    if first == last:
        return [(first, len(rank), total_bytes(sizes, len(rank)))]
    of = partitions(rank)
    counts = np.bincount(of - first)
    if isinstance(sizes, int):
        totals = counts * sizes
    else:
        totals = np.bincount(of - first, sizes).astype(np.int64)
    found = np.flatnonzero(counts)
    columns = found + first, counts[found], totals[found]
    return zip(*(column.tolist() for column in columns), strict=True)


def _in_sequence(runs: Sequence[SortedRun]) -> list[Rows]:
    """Return runs as they are if they are long and do not overlap, else as one."""
    runs = sorted(runs, key=lambda run: run.first)
    is_long = sum(map(len, runs)) >= LONG_RUN * len(runs)
    if is_long and not any(a.last > b.first for a, b in itertools.pairwise(runs)):
        return [run.rows for run in runs]
    return [merged([run.rows for run in runs])] if runs else []


def merged(parts: Sequence[Rows]) -> Rows:
    """Return at least one sorted part as one."""
    if len(parts) == 1:
        return parts[0]
    rows = concat(sorted(parts, key=lambda part: (int(part.t[0]), int(part.rank[0]))))
    if _is_sorted(rows):
        return rows
    return rows.take(_settled(np.argsort(rows.t, kind="stable"), rows.t, rows.rank))


def _sorted(rows: Rows) -> Rows:
    if _is_sorted(rows):
        return rows
    order = np.argsort(rows.t)  # the fastest, but not stable
    t = rows.t[order]
    if (t[:-1] == t[1:]).any():
        order = _settled(np.argsort(rows.t, kind="stable"), rows.t, rows.rank)
    return rows.take(order)


def _is_sorted(rows: Rows) -> bool:
    t, rank = rows.t, rows.rank
    before, after = t[:-1], t[1:]
    return bool(((before < after) | ((before == after) & (rank[:-1] < rank[1:]))).all())


def _settled(order: Int64s, t: Int64s, rank: Int64s) -> Int64s:
    """Return an order by `t` in which ties stand by rank."""
    t_there, rank_there = t[order], rank[order]
    tied = t_there[:-1] == t_there[1:]
    if not (tied & (rank_there[:-1] > rank_there[1:])).any():
        return order
    some = np.zeros(len(order), bool)
    some[1:] |= tied
    some[:-1] |= tied
    rows = order[some]
    order[some] = rows[np.lexsort((rank[rows], t[rows]))]
    return order
