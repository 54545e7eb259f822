"""Decides for each row that arrives whether it becomes an event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tgflow.streams.ingest.config import AFTER_ALL, BEFORE_ALL, OrderConfig
from tgflow.streams.ingest.dedup import RecentIds, Seen
from tgflow.streams.ingest.ordered_rows import MAX_PARTITION, Rows, ranks, sequence, total_bytes
from tgflow.streams.ingest.partition import PartitionState
from tgflow.streams.ingest.reorder import ReorderBuffer
from tgflow.streams.ingest.watermark import BoundedWindow, Classified, classify
from tgflow.streams.rows.checks import Int64s
from tgflow.streams.rows.row_batch import BadRow, PolledRows, RowBatch


@dataclass(frozen=True, slots=True)
class Admitted:
    """What became of the rows of one `PolledRows`.

    Args:
        rows: The events.
        bad: Rows that are no events, by number.
        late: Events that came too late, by number.
        num_duplicates: Rows dropped since they had come before.
        forced: How often the watermark was forced on.
        unlogged: Event ids of rows that are neither events nor duplicates.
    """

    rows: Rows
    bad: list[BadRow]
    late: list[BadRow]
    num_duplicates: int
    forced: int
    unlogged: Seen | None


class Admission:
    """Judges rows and knows how far each partition has come.

    Args:
        config: The rules.
        buffer: Where the events go that are taken; only looked at.
    """

    def __init__(self, config: OrderConfig, buffer: ReorderBuffer) -> None:
        self.partitions: dict[int, PartitionState] = {}
        self.recent: dict[int, RecentIds] = {}
        self.ended: set[int] = set()
        self.released = BEFORE_ALL
        """All events before this time have been released."""
        self._config = config
        self._buffer = buffer
        self._held: dict[int, tuple[int, int]] = {}
        self._windows: dict[int, BoundedWindow] = {}

    def join(self, partition: int) -> None:
        """Begin with a partition.

        Raises:
            ValueError: If its number is negative or too large.
        """
        if not 0 <= partition <= MAX_PARTITION:
            raise ValueError(f"partitions are numbered 0 to {MAX_PARTITION}, got {partition}")
        self.partitions[partition] = PartitionState()

    def watermark_of(self, partition: int) -> int:
        """Return the time that the next event of a partition must have at least."""
        if partition in self.ended:
            return AFTER_ALL
        return self.partitions[partition].front.watermark(self._config.allowed_lateness)

    def watermark(self) -> int:
        """Return the time before which no event will come; it never goes back.

        Idle partitions have no say unless all are; without partitions there is nothing to come.
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
        """Let the others continue without these until they are heard of again."""
        for partition in partitions:
            self.partitions[partition] = replace(self.partitions[partition], is_idle=True)

    def behind(self) -> set[int]:
        """Return the partitions that hold the others back: those that are behind all of them."""
        least = self.watermark()
        return {p for p in self.partitions if self.watermark_of(p) <= least} - self.ended

    def wanted(self) -> set[int]:
        """Return the partitions to read from: when the buffer is full, those that are behind."""
        config, others = self._config, len(self.partitions) - 1
        full = (others + 1) * len(self._buffer) >= others * config.buffer_events
        full |= (others + 1) * self._buffer.num_bytes >= others * config.max_bytes
        if others and full:
            return self.behind()
        return self.partitions.keys() - self.ended

    def admit(self, polled: PolledRows) -> Admitted:
        """Judge the next rows of a partition."""
        partition, batch = polled.partition, polled.rows
        state = self.partitions[partition]
        index = np.arange(len(batch.events)) if batch.index is None else batch.index
        event_ids = batch.event_ids if self._config.dedup_window else None
        rows = Rows(ranks(partition, state.seq + index), batch.events, event_ids)
        good = self._new_ones(partition, state.seq + index, rows)
        fresh = rows if good is None else rows.take(good)
        sizes = fresh.sizes()
        classified = classify(
            fresh.t,
            state.front,
            self._config,
            released=self.released,
            window=self._window_for(partition, fresh, sizes),
            sizes=sizes,
        )
        self.partitions[partition] = PartitionState(
            batch.position, state.seq + batch.num_rows, classified.front
        )
        return _admitted(batch, index, good, fresh, classified)

    def _new_ones(self, partition: int, seq: Int64s, rows: Rows) -> Int64s | None:
        """Return the numbers of the rows that are no duplicates, None if that is all."""
        if rows.event_ids is None:
            return None
        recent = self.recent.setdefault(partition, RecentIds(self._config.dedup_window))
        is_duplicate = recent.duplicates(Seen(seq, rows.event_ids))
        return np.flatnonzero(~is_duplicate) if is_duplicate.any() else None

    def _window_for(self, partition: int, rows: Rows, sizes: int | Int64s) -> BoundedWindow | None:
        """Return the partition's events at or after its watermark, if with `rows` too many may be.

        Counting them takes a look at all that is held back. So they are known only roughly, and
        counted again when even that many and `rows` might not fit.
        """
        most = self._config.buffer_events, self._config.max_bytes
        most_rows, most_bytes = (max(1, size // len(self.partitions)) for size in most)
        num_bytes = total_bytes(sizes, len(rows))

        def fits(held: tuple[int, int], times: int = 1) -> bool:
            rows_fit = times * (held[0] + len(rows)) <= most_rows
            return rows_fit and times * (held[1] + num_bytes) <= most_bytes

        if (window := self._windows.pop(partition, None)) is not None:
            if not fits((len(window), window.num_bytes), 2):
                self._windows[partition] = window
                window.most_rows, window.most_bytes = most_rows, most_bytes
                return window
            self._held[partition] = len(window), window.num_bytes
        buffer = self._buffer
        known = self._held.get(partition)
        held = known or (buffer.num_rows(partition), buffer.bytes_of(partition))
        if not fits(held):
            watermark = self.partitions[partition].front.watermark(self._config.allowed_lateness)
            window = BoundedWindow.of(
                buffer.rows_since(partition, watermark), most_rows, most_bytes
            )
            held = len(window), window.num_bytes
            if not fits(held):
                self._windows[partition] = window
                return window
        self._held[partition] = held[0] + len(rows), held[1] + num_bytes
        return None


def _admitted(
    batch: RowBatch, index: Int64s, good: Int64s | None, fresh: Rows, classified: Classified
) -> Admitted:
    """Sort the rows by what became of them.

    Args:
        batch: The rows.
        index: Of each good row its number among all rows.
        good: Of each row classified its number among the good ones; None if all were classified.
        fresh: The rows classified.
        classified: The verdict on them.
    """
    late: list[BadRow] = []
    bad = batch.bad()
    for rejected in classified.rejected:
        row = rejected.row if good is None else int(good[rejected.row])
        entry = BadRow(int(index[row]), rejected.code, rejected.text, batch.origin(row))
        (late if rejected.code == "late" else bad).append(entry)
    unlogged = None
    rows = fresh
    if classified.rejected:
        out = np.array([rejected.row for rejected in classified.rejected])
        rows = fresh.take(np.delete(np.arange(len(fresh)), out))
        bad.sort(key=lambda entry: entry.index)
        if fresh.event_ids is not None:
            unlogged = Seen(sequence(fresh.rank[out]), fresh.event_ids[out])
    num_duplicates = len(batch.events) - len(fresh)
    return Admitted(rows, bad, late, num_duplicates, classified.forced, unlogged)
