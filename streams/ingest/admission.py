"""Row admission: duplicates, lateness and time jumps.

Each row is decided individually, so the result does not depend on poll boundaries.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tgflow.streams.errors import RowFault
from tgflow.streams.ingest.config import AFTER_ALL, BEFORE_ALL, OrderConfig
from tgflow.streams.ingest.ordering import (
    MAX_PARTITION,
    ReorderBuffer,
    Rows,
    ranks,
    sequence,
    total_bytes,
)
from tgflow.streams.rows.row_batch import BadRow, Int64s, Position, RowBatch

SLACK = 1024
"""Ids kept in addition to twice the window before old ones are discarded."""


class Seen(NamedTuple):
    """Event ids, and the row number where each first occurred, both int64."""

    seq: Int64s
    ids: Int64s


@dataclass(frozen=True, slots=True)
class DedupWindow:
    """A snapshot of the remembered ids: immutable, although it shares `pieces` with later ones."""

    pieces: list[Seen]
    stop: int
    first_seq: int

    def seen(self) -> Seen:
        """Return the ids, by increasing row number."""
        pieces = [Seen(np.empty(0, np.int64), np.empty(0, np.int64)), *self.pieces[: self.stop]]
        seq, ids = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
        recent = np.flatnonzero(seq >= self.first_seq)
        recent = recent[np.argsort(seq[recent], kind="stable")]
        return Seen(seq[recent], ids[recent])


class RecentIds:
    """The event ids of the last rows of one partition.

    A row is a duplicate if one of the `window` rows before it was the first with its id. Duplicates
    are not remembered, so a row that is repeated forever passes once per window.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._seq_of: dict[int, int] = {}
        self._pieces: list[Seen] = []  # append-only, as windows share it
        self._num_rows = 0
        self._first_seq = -window

    def duplicates(self, seen: Seen) -> npt.NDArray[np.bool_]:
        """Return which of the next rows are duplicates, and remember the others."""
        is_duplicate = np.zeros(len(seen.seq), bool)
        for row, (seq, key) in enumerate(zip(seen.seq.tolist(), seen.ids.tolist(), strict=True)):
            before = self._seq_of.get(key)
            if before is not None and seq - before <= self._window:
                is_duplicate[row] = True
            else:
                self._seq_of[key] = seq
        self._keep(Seen(seen.seq[~is_duplicate], seen.ids[~is_duplicate]), seen.seq)
        return is_duplicate

    def remember(self, seen: Seen) -> None:
        """Add rows known not to be duplicates, in any order."""
        order = np.argsort(seen.seq)
        seen = Seen(seen.seq[order], seen.ids[order])
        for seq, key in zip(seen.seq.tolist(), seen.ids.tolist(), strict=True):
            self._seq_of[key] = max(seq, self._seq_of.get(key, seq))
        self._keep(seen, seen.seq)

    def window(self) -> DedupWindow:
        """Return a snapshot of the remembered ids."""
        return DedupWindow(self._pieces, len(self._pieces), self._first_seq)

    def _keep(self, seen: Seen, read: Int64s) -> None:
        """Keep rows, and discard those outside the window of every row after `read`."""
        if len(seen.seq):
            self._pieces.append(seen)
            self._num_rows += len(seen.seq)
        if len(read):
            self._first_seq = max(self._first_seq, int(read[-1]) + 1 - self._window)
        if self._num_rows > 2 * self._window + SLACK:
            recent = self.window().seen()
            self._pieces, self._num_rows = [recent], len(recent.seq)
            self._seq_of = dict(zip(recent.ids.tolist(), recent.seq.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class PartitionState:
    """State of a partition after some of its rows.

    The source resumes at `position` (None: the beginning); the next row has number `seq`; `max_t`
    is the latest event time; the watermark was forced forward to `floor`. An idle partition has
    exceeded the idle timeout and no longer delays the others.
    """

    position: Position | None = None
    seq: int = 0
    max_t: int = BEFORE_ALL
    floor: int = BEFORE_ALL
    is_idle: bool = False

    def watermark(self, allowed_lateness: int) -> int:
        """Return the partition's watermark: the minimum time of its next event."""
        return max(self.floor, self.max_t - allowed_lateness, BEFORE_ALL)


class BoundedWindow:
    """A partition's events at or after its watermark, bounded in number and in bytes."""

    def __init__(self, parts: Iterable[Rows], most_rows: int, most_bytes: int) -> None:
        self.most_rows, self.most_bytes = most_rows, most_bytes
        self._heap = [row for part in parts for row in _sized(part.t, part.sizes())]
        heapq.heapify(self._heap)
        self.num_bytes = sum(size for _, size in self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, t: int, size: int, watermark: int) -> int | None:
        """Add an event; evict those before the watermark and, above a bound, the earliest.

        Returns the watermark forced by evictions above a bound; None if there were none.
        """
        heapq.heappush(self._heap, (t, size))
        self.num_bytes += size
        self._leave(watermark)
        forced = None
        while len(self._heap) > self.most_rows or self.num_bytes > self.most_bytes:
            forced = self._heap[0][0] + 1
            self._leave(forced)
        return forced

    def _leave(self, watermark: int) -> None:
        while self._heap and self._heap[0][0] < watermark:
            self.num_bytes -= heapq.heappop(self._heap)[1]


def _sized(t: Int64s, sizes: int | Int64s) -> Iterable[tuple[int, int]]:
    each = [sizes] * len(t) if isinstance(sizes, int) else sizes.tolist()
    return zip(t.tolist(), each, strict=True)


class Classified(NamedTuple):
    """State of a partition after some events, and the rejected ones in order."""

    max_t: int
    floor: int
    rejected: list[RowFault]
    forced: int = 0
    """Number of times the watermark was forced forward."""


def classify(
    t: Int64s,
    state: PartitionState,
    config: OrderConfig,
    *,
    released: int = BEFORE_ALL,
    window: BoundedWindow | None = None,
    sizes: int | Int64s = 0,
) -> Classified:
    """Classify the next events of a partition; rejects late events and bad times.

    All events before `released` have been released. If the events at or after the watermark could
    exceed the bounds, `window` holds the earlier ones, and receives these, with `sizes` in bytes.
    """
    jump, lateness = config.jump, config.allowed_lateness
    if not len(t):
        return Classified(state.max_t, state.floor, [])
    before = np.maximum.accumulate(np.concatenate([np.array([state.max_t]), t[:-1]]))
    is_odd = (t < config.first_t) | (t > config.last_t)
    if jump is not None:  # the first event of a partition cannot be checked
        is_odd |= (before != BEFORE_ALL) & (t > before) & (_distance(t, before) > jump)
    if window is not None or is_odd.any():
        return _classify_each(t, state, config, released, window, sizes)
    least = max(state.floor, released)
    late = (t < least) | ((t < before) & (_distance(before, t) > lateness))
    rejected = [
        _late(row, int(t[row]), max(least, int(before[row]) - lateness), lateness)
        for row in np.flatnonzero(late).tolist()
    ]
    return Classified(max(int(before[-1]), int(t[-1])), state.floor, rejected)


def _distance(later: Int64s, earlier: Int64s) -> npt.NDArray[np.uint64]:
    """Return `later - earlier` where it is not negative, without overflow."""
    return later.view(np.uint64) - earlier.view(np.uint64)


def _classify_each(
    t: Int64s,
    state: PartitionState,
    config: OrderConfig,
    released: int,
    window: BoundedWindow | None,
    sizes: int | Int64s,
) -> Classified:
    """Classify events one by one."""
    rejected: list[RowFault] = []
    max_t, floor, forced = state.max_t, state.floor, 0
    first, last = config.first_t, config.last_t
    jump, lateness = config.jump, config.allowed_lateness
    for row, (at, size) in enumerate(_sized(t, sizes)):
        watermark = max(floor, max_t - lateness, released)
        if not first <= at <= last:
            rejected.append(RowFault(row, "time_range", f"t is {at}, outside of [{first}, {last}]"))
        elif jump is not None and max_t != BEFORE_ALL and at > max_t + jump:
            text = f"t is {at}, {at - max_t} ticks after the latest so far, {max_t}"
            rejected.append(RowFault(row, "time_jump", f"{text}; max_time_jump is {jump}"))
        elif at < watermark:
            rejected.append(_late(row, at, watermark, lateness))
        else:
            max_t = max(max_t, at)
            if window is not None and (to := window.add(at, size, max_t - lateness)) is not None:
                floor, forced = to, forced + 1
    return Classified(max_t, floor, rejected, forced)


def _late(row: int, t: int, watermark: int, lateness: int) -> RowFault:
    text = (
        f"t is {t}, {watermark - t} ticks before the watermark {watermark}; allowed_lateness is "
        f"{lateness}, raise it to wait longer for such events"
    )
    return RowFault(row, "late", text)


@dataclass(slots=True)
class Admitted:
    """Result of admitting a `RowBatch`: events, rejected rows by number, and counts.

    `forced` counts how often the watermark was forced forward; `unlogged` holds the event ids of
    rows that are neither events nor duplicates.
    """

    rows: Rows
    rejected: list[BadRow] = field(default_factory=list)
    num_duplicates: int = 0
    forced: int = 0
    unlogged: Seen | None = None


class Admission:
    """Admits rows, and holds the state of each partition."""

    def __init__(self, config: OrderConfig, buffer: ReorderBuffer) -> None:
        self.partitions: dict[int, PartitionState] = {}
        self.recent: dict[int, RecentIds] = {}
        self.ended: set[int] = set()
        self.released = BEFORE_ALL
        """All events before this time have been released."""
        self._config = config
        self._buffer = buffer
        self._windows: dict[int, BoundedWindow] = {}

    def join(self, partition: int) -> None:
        """Add a partition."""
        if not 0 <= partition <= MAX_PARTITION:
            raise ValueError(f"partitions are numbered 0 to {MAX_PARTITION}, got {partition}")
        self.partitions[partition] = PartitionState()

    def watermark_of(self, partition: int) -> int:
        """Return a partition's watermark: the minimum time of its next event."""
        if partition in self.ended:
            return AFTER_ALL
        return self.partitions[partition].watermark(self._config.allowed_lateness)

    def watermark(self) -> int:
        """Return the global watermark: no later event is before it; it never decreases.

        Idle partitions are ignored unless all are idle; without partitions it is infinite.
        """
        all_of_them = {p: self.watermark_of(p) for p in self.partitions}
        active = [t for p, t in all_of_them.items() if not self.is_idle(p)]
        if active:
            return max(self.released, min(active))
        return max(self.released, max(all_of_them.values(), default=AFTER_ALL))

    def is_idle(self, partition: int) -> bool:
        """Whether a partition is idle, and has not ended."""
        return self.partitions[partition].is_idle and partition not in self.ended

    def make_idle(self, partitions: Iterable[int]) -> None:
        """Mark partitions as idle until they deliver rows again."""
        for partition in partitions:
            self.partitions[partition] = replace(self.partitions[partition], is_idle=True)

    def behind(self) -> set[int]:
        """Return the partitions with the lowest watermark, which delay the others."""
        least = self.watermark()
        return {p for p in self.partitions if self.watermark_of(p) <= least} - self.ended

    def wanted(self) -> set[int]:
        """Return the partitions to poll: when the buffer is full, only the ones that are behind."""
        config, others = self._config, len(self.partitions) - 1
        full = (others + 1) * len(self._buffer) >= others * config.buffer_events
        full |= (others + 1) * self._buffer.num_bytes.total() >= others * config.max_bytes
        if others and full:
            return self.behind()
        return self.partitions.keys() - self.ended

    def remember(self, partition: int, seen: Seen) -> None:
        """Add event ids of earlier rows, if deduplication is on."""
        if window := self._config.dedup_window:
            self.recent.setdefault(partition, RecentIds(window)).remember(seen)

    def admit(self, batch: RowBatch) -> Admitted:
        """Admit the next rows of a partition."""
        partition, dedup_window = batch.partition, self._config.dedup_window
        state = self.partitions[partition]
        index = np.arange(len(batch.events)) if batch.index is None else batch.index
        ids = batch.event_ids if dedup_window else None
        rows = Rows(ranks(partition, state.seq + index), batch.events, ids)
        num_duplicates = 0
        if ids is not None:
            recent = self.recent.setdefault(partition, RecentIds(dedup_window))
            is_duplicate = recent.duplicates(Seen(state.seq + index, ids))
            if num_duplicates := int(np.count_nonzero(is_duplicate)):
                fresh = np.flatnonzero(~is_duplicate)
                rows, index = rows.take(fresh), index[fresh]
        sizes = rows.sizes()
        found = classify(
            rows.t,
            state,
            self._config,
            released=self.released,
            window=self._window_for(partition, len(rows), total_bytes(sizes, len(rows))),
            sizes=sizes,
        )
        self.partitions[partition] = PartitionState(
            batch.position, state.seq + batch.num_rows, found.max_t, found.floor
        )
        rejected, unlogged = batch.bad(), None
        if found.rejected:
            for fault in found.rejected:
                number = int(index[fault.row])
                rejected.append(BadRow(number, fault.code, fault.text, batch.locate(number)))
            rejected.sort(key=lambda row: row.index)
            out = np.array([fault.row for fault in found.rejected])
            if rows.event_ids is not None:
                unlogged = Seen(sequence(rows.rank[out]), rows.event_ids[out])
            rows = rows.take(np.delete(np.arange(len(rows)), out))
        return Admitted(rows, rejected, num_duplicates, found.forced, unlogged)

    def _window_for(self, partition: int, num_rows: int, num_bytes: int) -> BoundedWindow | None:
        """Return the window of a partition that could exceed its bounds, else None.

        An existing window is kept until twice as many events would fit.
        """
        num_partitions, config, buffer = len(self.partitions), self._config, self._buffer
        most_rows = max(1, config.buffer_events // num_partitions)
        most_bytes = max(1, config.max_bytes // num_partitions)

        def fits(held: int, held_bytes: int, times: int = 1) -> bool:
            rows_fit = times * (held + num_rows) <= most_rows
            return rows_fit and times * (held_bytes + num_bytes) <= most_bytes

        window = self._windows.pop(partition, None)
        if window is None:
            if fits(buffer.num_rows[partition], buffer.num_bytes[partition]):
                return None
            held = buffer.rows_since(partition, self.watermark_of(partition))
            if fits(sum(map(len, held)), sum(total_bytes(h.sizes(), len(h)) for h in held)):
                return None
            window = BoundedWindow(held, most_rows, most_bytes)
        elif fits(len(window), window.num_bytes, 2):
            return None
        window.most_rows, window.most_bytes = most_rows, most_bytes
        self._windows[partition] = window
        return window
