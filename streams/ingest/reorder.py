"""Holds events back until nothing earlier can come, and hands them on in their order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from sortedcontainers import SortedKeyList

from tgflow.streams.ingest import payload
from tgflow.streams.ingest.ordered_rows import SEQ_BITS, Rows, partitions, total_bytes
from tgflow.streams.ingest.payload import SLAB_BITS, Payload, Slabs
from tgflow.streams.rows.checks import Int64s

FANOUT_BITS = 3
"""Runs whose lengths have equally many digits to this base of 2 are merged, 8 at a time."""
LONG_RUN = 4096
"""From which average length on runs that do not overlap are released one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class SortedRun:
    """Keys in their order, (t, rank), and where the events are that they belong to."""

    t: Int64s
    rank: Int64s
    index: Int64s
    room: int
    """Length of the arrays that hold it, of which it may be the rest."""

    def __len__(self) -> int:
        return len(self.t)

    @property
    def first(self) -> tuple[int, int]:
        """The key it begins with."""
        return int(self.t[0]), int(self.rank[0])

    @property
    def last(self) -> tuple[int, int]:
        """The key it ends with."""
        return int(self.t[-1]), int(self.rank[-1])

    @property
    def level(self) -> int:
        """How many digits its length has."""
        return len(self).bit_length() // FANOUT_BITS

    def head(self, size: int) -> SortedRun:
        """Return the first `size` keys."""
        return SortedRun(self.t[:size], self.rank[:size], self.index[:size], self.room)

    def tail(self, size: int) -> SortedRun:
        """Return all but the first `size` keys; if they are few, without holding the others."""
        rest = self.t[size:], self.rank[size:], self.index[size:]
        if 4 * len(rest[0]) < self.room:
            t, rank, index = (column.copy() for column in rest)
            return SortedRun(t, rank, index, len(t))
        return SortedRun(*rest, self.room)


@dataclass(frozen=True, slots=True)
class BufferSnapshot:
    """What a buffer held at one moment; nothing in it ever changes."""

    runs: tuple[SortedRun, ...]
    slabs: Slabs

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def rows(self) -> Rows | None:
        """Return the rows in their order, None if there are none."""
        return _gather(self.slabs, merged(self.runs)) if self.runs else None


class ReorderBuffer:
    """Events that may still be preceded by others.

    The order is by (t, partition, number of the row in the partition). Adding `n` rows costs about
    `n` times the logarithm of how many `n` are in the buffer, however large it is; releasing them,
    `n` and a little for each of the few runs that they are spread over.
    """

    def __init__(self) -> None:
        self._runs = SortedKeyList(key=lambda run: int(run.t[0]))
        self._payload = Payload()
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
        """Take rows in, in any order."""
        if not len(rows):
            return
        self._tally(rows, 1)
        self._runs.add(_sorted(rows, self._payload.add(rows)))
        self._merge_alike()

    def release(self, watermark: int) -> list[Rows]:
        """Take out all rows with `t < watermark` and return them in order, in pieces.

        Long runs that do not overlap, as those of a file in order, come one after the other as they
        are. Pieces may share memory with rows still in it, which never changes.
        """
        num_runs = self._runs.bisect_key_left(watermark)
        touched = list(self._runs[:num_runs])
        del self._runs[:num_runs]
        heads = []
        for run in touched:
            size = int(np.searchsorted(run.t, watermark))
            heads.append(run.head(size))
            if size < len(run):
                self._runs.add(run.tail(size))
        pieces = []
        for run in _in_sequence(heads):
            pieces.append(_gather(self._payload.slabs, run))
            self._payload.forget(run.index)
            self._tally(pieces[-1], -1)
        if self._payload.num_rows > 4 * self._size + (2 << SLAB_BITS):
            self._compact()
        return pieces

    def rows_since(self, partition: int, t: int) -> Rows | None:
        """Return the rows of a partition at or after `t`, None if there are none."""
        found = []
        for run in self._runs:
            wanted = (partitions(run.rank) == partition) & (run.t >= t)
            found.append(SortedRun(run.t[wanted], run.rank[wanted], run.index[wanted], 0))
        found = [run for run in found if len(run)]
        return _gather(self._payload.slabs, merged(found)) if found else None

    def held(self) -> BufferSnapshot:
        """Return what is in it now."""
        return BufferSnapshot(tuple(self._runs), dict(self._payload.slabs))

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
            self._runs.add(merged(alike))

    def _compact(self) -> None:
        """Move the payload together: most of what its slabs hold is no longer wanted."""
        old, self._payload = self._payload, Payload()
        runs = list(self._runs)
        self._runs.clear()
        for run in runs:
            rows = _gather(old.slabs, run)
            self._runs.add(SortedRun(run.t, run.rank, self._payload.add(rows, copy=True), run.room))


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


def _in_sequence(runs: Sequence[SortedRun]) -> Sequence[SortedRun]:
    """Return runs as they are if they are long and do not overlap, else as one."""
    runs = sorted(runs, key=lambda run: run.first)
    is_long = sum(map(len, runs)) >= LONG_RUN * len(runs)
    if is_long and not any(a.last > b.first for a, b in itertools.pairwise(runs)):
        return runs
    return [merged(runs)] if runs else []


def merged(runs: Sequence[SortedRun]) -> SortedRun:
    """Return the keys of at least one run as one run."""
    if len(runs) == 1:
        return runs[0]
    runs = sorted(runs, key=lambda run: run.first)
    t, rank, index = (
        np.concatenate([getattr(run, name) for run in runs]) for name in ("t", "rank", "index")
    )
    if any(a.last > b.first for a, b in itertools.pairwise(runs)):
        order = _settled(np.argsort(t, kind="stable"), t, rank)  # fast, as the runs are in order
        t, rank, index = t[order], rank[order], index[order]
    return SortedRun(t, rank, index, len(t))


def _sorted(rows: Rows, index: Int64s) -> SortedRun:
    """Return the keys of rows in order."""
    t, rank = rows.t, rows.rank
    before, after = t[:-1], t[1:]
    in_order = (before < after) | ((before == after) & (rank[:-1] < rank[1:]))
    if not in_order.all():
        order = np.argsort(t)  # the fastest, but not stable
        t = t[order]
        if (t[:-1] == t[1:]).any():
            order = _settled(np.argsort(rows.t, kind="stable"), rows.t, rank)
            t = rows.t[order]
        rank, index = rank[order], index[order]
    return SortedRun(t, rank, index, len(t))


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


def _gather(slabs: Slabs, run: SortedRun) -> Rows:
    return Rows(run.rank, payload.take(slabs, run.index, run.t))
