"""Row admission: duplicates, lateness and time jumps; the order of what is admitted.

Each row is decided individually, so the result does not depend on poll boundaries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sortedcontainers import SortedDict

from tgflow.base.units import INT64_MAX, ticks_per_unit
from tgflow.streams.ingest.config import AFTER_ALL, BEFORE_ALL, OrderConfig
from tgflow.streams.ingest.ingest_state import DedupWindow, IngestState, PartitionState, Seen
from tgflow.streams.ingest.ordering import (
    MAX_PARTITION,
    ReorderBuffer,
    from_arrow,
    partitions,
    ranks,
    sequence,
    sizes_of,
)
from tgflow.streams.rows.row_batch import BadRow, EventColumns, Fault, Int64s, RowBatch

AHEAD_MS = 86_400_000
"""Milliseconds by which a time may be after the clock, where `max_time_jump` is unset."""
SLACK = 1024
"""Ids kept in addition to twice the window before old ones are discarded."""


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


class BoundedWindow:
    """A partition's events at or after its watermark, bounded in number and in bytes.

    Those of the latest tick are never evicted: events of this tick may always follow.
    """

    def __init__(self, parts: Iterable[EventColumns], most_rows: int, most_bytes: int) -> None:
        self.most_rows, self.most_bytes = most_rows, most_bytes
        self.num_bytes = self._num_rows = 0
        self._sizes = SortedDict()
        """Rows and bytes of each tick."""
        for part in parts:
            for t, size in zip(part.t.tolist(), sizes_of(part).tolist(), strict=True):
                self._enter(t, size)

    def __len__(self) -> int:
        return self._num_rows

    def add(self, t: int, size: int, watermark: int) -> int | None:
        """Add an event; evict those before the watermark and, above a bound, the earliest.

        Returns the watermark forced by evictions above a bound; None if there were none.
        """
        self._enter(t, size)
        self._leave(watermark)
        forced = None
        while self._num_rows > self.most_rows or self.num_bytes > self.most_bytes:
            if len(self._sizes) == 1:
                break
            forced = self._sizes.keys()[0] + 1
            self._leave(forced)
        return forced

    def _enter(self, t: int, size: int) -> None:
        of_tick = self._sizes.setdefault(t, [0, 0])
        of_tick[0] += 1
        of_tick[1] += size
        self._num_rows += 1
        self.num_bytes += size

    def _leave(self, watermark: int) -> None:
        while self._sizes and (first := self._sizes.keys()[0]) < watermark:
            num_rows, num_bytes = self._sizes.pop(first)
            self._num_rows -= num_rows
            self.num_bytes -= num_bytes


def classify(
    t: Int64s,
    state: PartitionState,
    limits: tuple[int, int | None],
    *,
    released: int = BEFORE_ALL,
    window: BoundedWindow | None = None,
    sizes: Int64s | None = None,
    most: Int64s | None = None,
) -> tuple[PartitionState, dict[int, Fault], int]:
    """Classify the next events of a partition: reject late events and bad times.

    All events before `released` have been released. If the events at or after the watermark could
    exceed the bounds, `window` holds the earlier ones, and receives these, with `sizes` in bytes.
    `most` is the latest time that each may have; None: any.

    Returns:
        The state after them, with `max_t` and `floor`; the faults of rejected events, by number;
        and how often the watermark was forced forward.
    """
    lateness, jump = limits
    if not len(t):
        return state, {}, 0
    before = np.maximum.accumulate(np.concatenate([np.array([state.max_t]), t[:-1]]))
    is_odd = (t == BEFORE_ALL) | (t == AFTER_ALL)
    if jump is not None:  # the first event of a partition cannot be checked
        is_odd |= (before != BEFORE_ALL) & (t > before) & (_distance(t, before) > jump)
    if most is not None:
        is_odd |= t > most
    if window is not None or is_odd.any():
        return _classify_each(t, state, limits, released, window, sizes, most)
    least = max(state.floor, released)
    late = (t < least) | ((t < before) & (_distance(before, t) > lateness))
    rejected = {
        row: _late(int(t[row]), max(least, int(before[row]) - lateness), lateness, state.floor)
        for row in np.flatnonzero(late).tolist()
    }
    return replace(state, max_t=max(int(before[-1]), int(t[-1]))), rejected, 0


def _distance(later: Int64s, earlier: Int64s) -> npt.NDArray[np.uint64]:
    """Return `later - earlier` where it is not negative, without overflow."""
    return later.view(np.uint64) - earlier.view(np.uint64)


def _classify_each(
    t: Int64s,
    state: PartitionState,
    limits: tuple[int, int | None],
    released: int,
    window: BoundedWindow | None,
    sizes: Int64s | None,
    most: Int64s | None,
) -> tuple[PartitionState, dict[int, Fault], int]:
    rejected: dict[int, Fault] = {}
    max_t, floor, forced = state.max_t, state.floor, 0
    lateness, jump = limits
    each = [0] * len(t) if sizes is None else sizes.tolist()
    for row, (at, size) in enumerate(zip(t.tolist(), each, strict=True)):
        watermark = max(floor, max_t - lateness, released)
        if at in (BEFORE_ALL, AFTER_ALL):
            rejected[row] = "time_range", f"t is {at}, a limit of int64"
        elif jump is not None and max_t != BEFORE_ALL and at > max_t + jump:
            text = f"t is {at}, {at - max_t} ticks after the latest so far, {max_t}"
            rejected[row] = "time_jump", f"{text}; max_time_jump is {jump} ticks"
        elif most is not None and at > most[row]:
            text = f"t is {at}, over a day after it was written or the clock; is the unit of times "
            text += "right, time_unit=...? else accept any, max_time_jump='none'"
            rejected[row] = "time_jump", text
        elif at < watermark:
            rejected[row] = _late(at, watermark, lateness, floor)
        else:
            max_t = max(max_t, at)
            least = max(max_t - lateness, released)
            if window is not None and (to := window.add(at, size, least)) is not None:
                floor, forced = to, forced + 1
    return replace(state, max_t=max_t, floor=floor), rejected, forced


def _late(t: int, watermark: int, lateness: int, floor: int) -> Fault:
    text = f"t is {t}, {watermark - t} ticks before the watermark {watermark}; allowed_lateness is "
    text += f"{lateness} ticks, raise it to wait longer for such events"
    if watermark == floor:  # forced by evictions
        text = f"t is {t}, {watermark - t} ticks before the watermark {watermark}, as the reorder "
        text += "buffer was full; raise buffer_events and buffer_bytes"
    return "late", text


class Admitted(NamedTuple):
    """Result of admitting a `RowBatch`: rejected rows by number, and counts.

    `forced` counts how often the watermark was forced forward.
    """

    rejected: list[BadRow]
    num_duplicates: int = 0
    forced: int = 0


class Admission:
    """Admits the rows of partitions to a reorder buffer, and releases them in order.

    A step is what happened since the last `release`: rows admitted, partitions changed.

    Args:
        config: Settings of ordering and admission.
        limits: Its lateness and maximum jump in ticks, see `OrderConfig.limits`.
        none: Rows of the stream, none of them.
        keep_event_ids: Whether to keep the texts of event ids.
        clock_unit: Unit of a tick: times more than a day after they were written, else after the
            clock, are bad rows. None: they are not.
    """

    def __init__(
        self,
        config: OrderConfig,
        limits: tuple[int, int | None],
        none: EventColumns,
        *,
        keep_event_ids: bool = False,
        clock_unit: str | None = None,
    ) -> None:
        self.released = BEFORE_ALL
        """All events before this time have been released."""
        self.limits = limits
        self._config, self._none, self._keep_event_ids = config, none, keep_event_ids
        self._clock_unit = clock_unit
        self._partitions: dict[int, PartitionState] = {}
        self._ended: Set[int] = set()
        self._recent: dict[int, RecentIds] = {}
        self._windows: dict[int, BoundedWindow] = {}
        self._buffer = ReorderBuffer()
        self._admitted: list[EventColumns] = []
        self._changed: set[int] = set()
        self._unlogged: dict[str, list[list[int]]] = {}
        """Numbers and event ids of the step's rows that are neither events nor duplicates."""

    @property
    def partitions(self) -> Set[int]:
        """The partitions that have joined."""
        return self._partitions.keys()

    @property
    def live(self) -> Set[int]:
        """The partitions that have not ended."""
        return self._partitions.keys() - self._ended

    @property
    def num_buffered(self) -> int:
        """Number of buffered events."""
        return len(self._buffer)

    @property
    def is_over(self) -> bool:
        """Whether all partitions have ended, and all events have been released."""
        return self.released == AFTER_ALL

    def can_release(self, silent: Set[int]) -> bool:
        """Return whether the step has changed anything, or events may be released."""
        if self._changed or self._watermark() > self.released:
            return True
        first = self._buffer.first_t
        return first is not None and first < self._bound(silent)

    def join(self, new: Iterable[int]) -> None:
        """Add partitions."""
        for partition in new:
            if not 0 <= partition <= MAX_PARTITION:
                raise ValueError(f"partitions are numbered 0 to {MAX_PARTITION}, got {partition}")
            self._change(partition, PartitionState())

    def end(self, ended: Set[int]) -> bool:
        """Record that partitions have ended; return whether all have."""
        self._ended |= ended & self.partitions
        return self._ended == self.partitions

    def set_idle(self, idle: Set[int]) -> None:
        """Mark exactly these partitions as idle, where events wait for others."""
        for partition, state in self._partitions.items() if self.num_buffered else ():
            if state.is_idle != (partition in idle):
                self._change(partition, replace(state, is_idle=partition in idle))

    def holding(self) -> set[int]:
        """Return the partitions that delay buffered events: active, with the lowest watermark."""
        behind = self._behind() if self.num_buffered else set()
        return {p for p in behind if not self._partitions[p].is_idle}

    def wanted(self) -> Set[int]:
        """Return the partitions to poll: when the buffer is full, only the ones that are behind."""
        config, num, buffer = self._config, len(self._partitions), self._buffer
        is_full = num * len(buffer) >= (num - 1) * config.buffer_events
        is_full |= num * buffer.num_bytes.total() >= (num - 1) * config.max_bytes
        return self._behind() if num > 1 and is_full else self.live

    def admit(self, batch: RowBatch) -> Admitted:
        """Admit the next rows of a partition: buffer the events among them."""
        partition, dedup_window = batch.partition, self._config.dedup_window
        state, rows = self._partitions[partition], batch.events
        index = np.arange(len(rows)) if batch.index is None else batch.index
        ids = rows.event_id_hash if dedup_window else None
        rows = replace(rows, rank=ranks(partition, state.seq + index), event_id_hash=ids)
        most = self._latest_times(batch.written)
        num_rows = len(rows)
        if ids is not None:
            is_duplicate = self._ids_of(partition).duplicates(Seen(state.seq + index, ids))
            if is_duplicate.any():
                fresh = np.flatnonzero(~is_duplicate)
                rows, index = rows.take(fresh), index[fresh]
                most = most[fresh] if most is not None and len(most) > 1 else most
        sizes = sizes_of(rows)
        after, faults, forced = classify(
            rows.t,
            state,
            self.limits,
            released=self.released,
            window=self._window_for(partition, len(rows), int(sizes.sum())),
            sizes=sizes,
            most=None if most is None else np.broadcast_to(most, len(rows)),
        )
        seq = state.seq + batch.num_rows
        self._change(partition, PartitionState(batch.position, seq, after.max_t, after.floor))
        rejected = batch.bad()
        if faults:
            for row, fault in faults.items():
                number = int(index[row])
                rejected.append(BadRow(number, *fault, batch.locate(number)))
            rejected.sort(key=lambda bad: bad.index)
            out = np.array([*faults])
            if rows.event_id_hash is not None:
                numbers, hashes = self._unlogged.setdefault(str(partition), [[], []])
                numbers += sequence(rows.rank[out]).tolist()
                hashes += rows.event_id_hash[out].tolist()
            rows = rows.take(np.delete(np.arange(len(rows)), out))
        self._admitted.append(self._buffered(rows))
        return Admitted(rejected, num_rows - len(index), forced)

    def release(
        self, silent: Set[int] = frozenset()
    ) -> tuple[list[EventColumns], EventColumns, dict[str, Any]]:
        """End the step: release the events that nothing can precede, or that waited long enough.

        No longer are events awaited that `silent` partitions may still deliver up to their latest
        times: the watermark is forced. Later events of these very times stand behind.

        Returns the events admitted, at least one part; those released, in order; and what else a
        log needs to repeat the step. Its `kind` is "forced" if the contents of the partitions alone
        do not determine it: then it must be durable before its events are used.
        """
        own = min((self._watermark_of(p) for p in self._partitions), default=AFTER_ALL)
        before, watermark, bound = self.released, self._watermark(), self._bound(silent)
        stop = max(watermark, bound)
        self.released = max(watermark, bound - 1)
        released = self._buffer.release(stop) or self._none
        is_forced = stop > own and (self.released > before or len(released) > 0)
        admitted = [rows for rows in self._admitted if len(rows)] or [self._none]
        footer = {
            "kind": "forced" if is_forced else "rows",
            "watermark": self.released,
            "released": stop,
            "num_buffered": len(self._buffer),
            "partitions": {str(p): asdict(self._partitions[p]) for p in sorted(self._changed)},
            "seen": self._unlogged,
        }
        self._admitted, self._changed, self._unlogged = [], set(), {}
        return admitted, released, footer

    def repeat(self, frame: pa.RecordBatch, footer: Mapping[str, Any]) -> EventColumns:
        """Repeat a step of the log; return the events released."""
        rows = self._buffered(from_arrow(frame)) if len(frame) else self._none
        if rows.event_id_hash is not None:
            of, seq = partitions(rows.rank), sequence(rows.rank)
            for p in np.unique(of).tolist():
                self._remember(p, Seen(seq[of == p], rows.event_id_hash[of == p]))
        for p, columns in footer["seen"].items():
            self._remember(int(p), Seen(*(np.array(column, np.int64) for column in columns)))
        for p, value in footer["partitions"].items():
            self._partitions[int(p)] = PartitionState(**value)
        self.released = footer["watermark"]
        return self._buffer.release(footer["released"]) or self._none

    def restore(self, state: IngestState) -> None:
        """Continue from a state."""
        if (rows := state.held_rows()) is not None:
            self._buffered(rows)
        self._partitions.update(state.partitions)
        self.released = state.watermark
        for partition, window in state.windows.items():
            self._remember(partition, window.seen())

    def resume(self, last_t: int) -> None:
        """Prepare for more rows; if all had ended, the next are at or after `last_t`."""
        if self.is_over:
            self.released = last_t

    def snapshot(self) -> dict[str, Any]:
        """Return the fields of `IngestState` that `restore` needs; later changes do not matter."""
        return {
            "watermark": self.released,
            "partitions": dict(self._partitions),
            "held": self._buffer.held(),
            "windows": {p: recent.window() for p, recent in self._recent.items()},
        }

    def _change(self, partition: int, state: PartitionState) -> None:
        self._partitions[partition] = state
        self._changed.add(partition)

    def _buffered(self, rows: EventColumns) -> EventColumns:
        rows = rows.keeping_ids(self._keep_event_ids)
        self._buffer.add(rows)
        return rows

    def _ids_of(self, partition: int) -> RecentIds:
        return self._recent.setdefault(partition, RecentIds(self._config.dedup_window))

    def _remember(self, partition: int, seen: Seen) -> None:
        if self._config.dedup_window:
            self._ids_of(partition).remember(seen)

    def _watermark_of(self, partition: int) -> int:
        """Return a partition's watermark: the minimum time of its next event."""
        if partition in self._ended:
            return AFTER_ALL
        return self._partitions[partition].watermark(self.limits[0])

    def _watermark(self) -> int:
        """Return the global watermark: no later event is before it; it never decreases."""
        return max(self.released, self._combined(self._watermark_of))

    def _bound(self, silent: Set[int]) -> int:
        """Return the time before which events wait no longer, given partitions of silence."""
        if not silent:
            return BEFORE_ALL

        def stop_of(partition: int) -> int:
            watermark, max_t = self._watermark_of(partition), self._partitions[partition].max_t
            return max(watermark, max_t + 1) if partition in silent else watermark

        if silent >= self.live:  # nothing more is to be expected of any
            return max(map(stop_of, self.live), default=AFTER_ALL)
        return self._combined(stop_of)

    def _combined(self, time_of: Callable[[int], int]) -> int:
        """Return the minimum over the partitions that have not ended; infinite without any."""
        active = [time_of(p) for p in self.live if not self._partitions[p].is_idle]
        return min(active) if active else max(map(time_of, self.live), default=AFTER_ALL)

    def _behind(self) -> set[int]:
        """Return the partitions with the lowest watermark, which delay the others."""
        least = self._watermark()
        return {p for p in self._partitions if self._watermark_of(p) <= least} - self._ended

    def _latest_times(self, written: Int64s | None) -> Int64s | None:
        """Return the latest time of each row by when it was written; of all, if unknown."""
        if self._clock_unit is None:
            return None
        now = np.array([int(1000 * time.time())])
        since = now if written is None else np.where(written > 0, written, now)
        ratio = ticks_per_unit("ms", self._clock_unit)
        most: Int64s = np.minimum(since, INT64_MAX // ratio.numerator - AHEAD_MS) + AHEAD_MS
        return most * ratio.numerator // ratio.denominator

    def _window_for(self, partition: int, num_rows: int, num_bytes: int) -> BoundedWindow | None:
        """Return the window of a partition that could exceed its bounds, else None."""
        num_partitions, config, buffer = len(self._partitions), self._config, self._buffer
        most_rows = max(1, config.buffer_events // num_partitions)
        most_bytes = max(1, config.max_bytes // num_partitions)

        def fits(held: int, held_bytes: int, times: int = 1) -> bool:
            rows_fit = times * (held + num_rows) <= most_rows
            return rows_fit and times * (held_bytes + num_bytes) <= most_bytes

        if (window := self._windows.pop(partition, None)) is None:
            if fits(buffer.num_rows[partition], buffer.num_bytes[partition]):
                return None
            held = buffer.rows_since(partition, self._watermark_of(partition))
            if fits(sum(map(len, held)), sum(int(sizes_of(each).sum()) for each in held)):
                return None
            window = BoundedWindow(held, most_rows, most_bytes)
        elif fits(len(window), window.num_bytes, 2):
            return None
        window.most_rows, window.most_bytes = most_rows, most_bytes
        self._windows[partition] = window
        return window
