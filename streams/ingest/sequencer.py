"""Rows in, events in their order out, each step logged; what is known after it is a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.durable.segments import LogPosition
from tgflow.streams.errors import LateEvent, StreamError
from tgflow.streams.ingest.accounting import RowAccounting, Unbalanced
from tgflow.streams.ingest.admission import Admission, Admitted
from tgflow.streams.ingest.breaker import CircuitBreaker
from tgflow.streams.ingest.config import AFTER_ALL, OrderConfig
from tgflow.streams.ingest.dead_letters import DeadLetter, DeadLetterSink, Length
from tgflow.streams.ingest.dedup import RecentIds, Seen
from tgflow.streams.ingest.ordered_rows import Rows, concat, partitions, sequence
from tgflow.streams.ingest.partition import PartitionState
from tgflow.streams.ingest.reorder import ReorderBuffer
from tgflow.streams.ingest.state import IngestState
from tgflow.streams.ingest.wal import WriteAheadLog, append
from tgflow.streams.rows.row_batch import BadRow, PolledRows

NO_LETTERS: Length = {"segment": 0, "byte": 0}
MANY_ROWS = 4096
"""Frames of this many rows are written by a thread of their own."""


@dataclass(slots=True)
class Taken:
    """What a poll brought.

    Args:
        rows: The events.
        partitions: The partitions that have changed.
        unlogged: By partition, numbers and event ids of rows to remember that are no events.
        error: Why nothing comes after `rows`, in strict reading.
    """

    rows: list[Rows] = field(default_factory=list)
    partitions: set[int] = field(default_factory=set)
    unlogged: dict[str, list[list[int]]] = field(default_factory=dict)
    error: StreamError | None = None


class Sequencer:
    """Takes rows, holds them back until nothing earlier can come, and logs each step.

    A step is `take`, `release` and `commit`: after `commit` the rows released may be handed on, as
    all that led to them is in the log.

    Args:
        name: The source's, for messages.
        config: Which rows are taken and how long they are held back.
        no_rows: No rows, with the columns of the source.
        accounting: Accounts for all rows.
        breaker: Stops at too many bad rows; None never does.
        letters: Takes the rows that are rejected; None drops them, counted.
        log: Where accepted rows are written; None writes none.
        state: Where to resume.
        give_up: Given for how many seconds the disk has been full; says whether that is enough.
        keep_event_ids: Whether the texts of event ids stay with the events.
        strict: Whether a bad or late row ends the stream, after the rows before it; events that
            may not be late are then released at once, as the one partition is in order.
    """

    def __init__(
        self,
        name: str,
        config: OrderConfig,
        no_rows: Rows,
        *,
        accounting: RowAccounting,
        breaker: CircuitBreaker | None,
        letters: DeadLetterSink | None,
        log: WriteAheadLog | None,
        state: IngestState,
        give_up: Callable[[float], bool],
        keep_event_ids: bool = False,
        strict: bool = False,
    ) -> None:
        self.buffer = ReorderBuffer()
        self.admission = Admission(config, self.buffer)
        self.state = state
        self._name = name
        self._config = config
        self._no_rows = no_rows
        self._accounting = accounting
        self._breaker = breaker
        self._letters = letters
        self._log = log
        self._give_up = give_up
        self._keep_event_ids = keep_event_ids
        self._strict = strict
        self._writer: ThreadPoolExecutor | None = None
        self._pending: tuple[Mapping[str, Any], Sequence[Rows], Future[LogPosition] | None] | None
        self._pending = None

    # Live

    def take(self, polled: Iterable[PolledRows]) -> Taken:
        """Judge rows, and hold back those that are taken; dead letters are on the disk then.

        Raises:
            LateEvent: If one comes too late and that is an error.
            TooManyBadRecords: If the breaker breaks; the letters are there by then.
            OSError: If letters cannot be written.
        """
        taken = Taken()
        pairs = [(rows, self.admission.admit(rows)) for rows in polled]
        if self._strict:
            pairs = [
                (rows, self._until_rejected(taken, rows, admitted)) for rows, admitted in pairs
            ]
        elif self._config.late == "error":
            _raise_late(admitted for _, admitted in pairs)
        self._write_letters(pairs)
        for rows, admitted in pairs:
            admitted_rows = admitted.rows.keeping_ids(self._keep_event_ids)
            self.buffer.add(admitted_rows)
            self._accounting.enter(rows, admitted)
            taken.partitions.add(rows.partition)
            if len(admitted.rows):
                taken.rows.append(admitted_rows)
            if admitted.unlogged is not None:
                seen = taken.unlogged.setdefault(str(rows.partition), [[], []])
                seen[0].extend(admitted.unlogged.seq.tolist())
                seen[1].extend(admitted.unlogged.ids.tolist())
            if self._breaker is not None:
                self._breaker.see(rows.partition, rows.rows.num_rows, admitted.bad)
        return taken

    def end(self) -> None:
        """Note that all partitions have ended.

        Raises:
            TooManyBadRecords: If more rows of all of them together were bad than may be.
        """
        accounting = self._accounting
        num_bad, num_rows = accounting.total("malformed"), accounting.total("read")
        if self._breaker is None or self._breaker.allows(num_bad, num_rows):
            return
        for partition in accounting.partitions:
            self._breaker.end(partition)

    def release(self, taken: Taken) -> Sequence[Rows]:
        """Release what nothing can precede any more, in pieces, and begin to log the step."""
        admission = self.admission
        admission.released = admission.watermark()
        at_once = self._strict and not self._config.allowed_lateness
        released = self.buffer.release(AFTER_ALL if at_once else admission.released)
        for rows in released:
            self._accounting.accept(rows.rank)
        footer = self._footer(taken, sum(map(len, released)))
        written = None
        if self._log is not None:  # empty polls too: a footer holds only the changes since the last
            written = self._write(concat(taken.rows) if taken.rows else self._no_rows, footer)
        self._pending = footer, released, written
        return released

    def commit(self) -> IngestState:
        """Wait until the step is in the log, and return the state after it.

        Raises:
            DiskFull: If there is no room.
            OSError: If the disk refuses.
        """
        assert self._pending is not None
        footer, released, written = self._pending
        self._pending = None
        return self._advance(footer, released, None if written is None else written.result())

    def close(self) -> None:
        """Wait for what is being written."""
        if self._writer is not None:
            self._writer.shutdown()

    # Resuming

    def replay(self) -> Iterator[Sequence[Rows]]:
        """Restore the state, and yield what each frame that the log holds beyond it released.

        Raises:
            LogCorrupt: If the log cannot be read.
            Unbalanced: If it gives another sequence.
        """
        state, admission = self.state, self.admission
        if (rows := state.held.rows()) is not None:
            self.buffer.add(rows.keeping_ids(self._keep_event_ids))
        admission.partitions.update(state.partitions)
        admission.released = state.watermark
        for partition, window in state.windows.items():
            self._remember(partition, window.seen())
        for batch, footer, end in () if self._log is None else self._log.read(state.log):
            yield self._apply(batch, footer, end)

    def go_live(self) -> None:
        """Put dead letters and accounting where the state is.

        Raises:
            OSError: If letters are missing, or cannot be taken back.
        """
        state, admission = self.state, self.admission
        self._accounting.restore(state.counts)
        if self._breaker is not None:
            self._breaker.restore(state.breaker)
        if self._letters is not None:
            self._letters.rewind(NO_LETTERS if state.letters is None else state.letters)
        if admission.released == AFTER_ALL:  # all had ended; should there be more now, it resumes
            admission.released = state.last_t

    def _apply(
        self, batch: pa.RecordBatch, footer: Mapping[str, Any], end: LogPosition
    ) -> Sequence[Rows]:
        """Do what was done when a frame was written; returns the rows released."""
        admission = self.admission
        if len(batch):
            rows = Rows.from_batch(batch).keeping_ids(self._keep_event_ids)
            self.buffer.add(rows)
            if rows.event_ids is not None:
                of, seq = partitions(rows.rank), sequence(rows.rank)
                for p in np.unique(of).tolist():
                    self._remember(p, Seen(seq[of == p], rows.event_ids[of == p]))
        for p, columns in footer["seen"].items():
            self._remember(int(p), Seen(*(np.array(column, np.int64) for column in columns)))
        changed = footer["partitions"].items()
        admission.partitions.update(
            {int(p): PartitionState.from_json(state) for p, state in changed}
        )
        admission.released = footer["watermark"]
        released = self.buffer.release(admission.released)
        num_released = self.state.num_released + sum(map(len, released))
        if (num_released, len(self.buffer)) != (footer["num_released"], footer["num_buffered"]):
            raise Unbalanced(
                f"after the log's frame that ends at {end} {num_released} events were released and "
                f"{len(self.buffer)} held back, but when it was written it were "
                f"{footer['num_released']} and {footer['num_buffered']}"
            )
        self._advance(footer, released, end)
        return released

    def _remember(self, partition: int, seen: Seen) -> None:
        if self._config.dedup_window:
            recent = self.admission.recent
            recent.setdefault(partition, RecentIds(self._config.dedup_window)).remember(seen)

    # Parts of a step

    def _until_rejected(self, taken: Taken, rows: PolledRows, admitted: Admitted) -> Admitted:
        """Return the rows before the first that is rejected, and note the error if there is one."""
        rejected = sorted((*admitted.bad, *admitted.late), key=lambda row: row.index)
        if not rejected:
            return admitted
        row = rejected[0]
        if row.code == "late":
            taken.error = _order_error(row, rows, self.state.last_t)
        else:
            taken.error = StreamError(row.origin.where, row.code, row.text)
        first = self.admission.partitions[rows.partition].seq - rows.rows.num_rows
        kept = np.flatnonzero(sequence(admitted.rows.rank) < first + row.index)
        return Admitted(admitted.rows.take(kept), [], [], 0, 0, None)

    def _write_letters(self, pairs: Sequence[tuple[PolledRows, Admitted]]) -> None:
        if self._letters is None:
            return
        rejected: list[BadRow] = []
        for _, admitted in pairs:
            late = admitted.late if self._config.late == "dead_letter" else []
            rejected += sorted((*admitted.bad, *late), key=lambda row: row.index)
        if rejected:
            self._letters.write(DeadLetter.of(self._name, row) for row in rejected)
            self._letters.sync()

    def _footer(self, taken: Taken, num_released: int) -> dict[str, Any]:
        admission, counts = self.admission, self._accounting.changes()
        breaker = {} if self._breaker is None else self._breaker.to_json()
        partitions = {str(p): admission.partitions[p].to_json() for p in sorted(taken.partitions)}
        return {
            "watermark": admission.released,
            "num_released": self.state.num_released + num_released,
            "num_buffered": len(self.buffer),
            "partitions": partitions,
            "counts": counts,
            "breaker": {p: breaker[p] for p in counts if p in breaker},
            "letters": NO_LETTERS if self._letters is None else self._letters.length,
            "seen": taken.unlogged,
        }

    def _write(self, rows: Rows, footer: Mapping[str, Any]) -> Future[LogPosition]:
        """Begin to write a frame; a small one is written when this returns."""
        assert self._log is not None
        if len(rows) >= MANY_ROWS:
            self._writer = self._writer or ThreadPoolExecutor(1, "tgflow-log")
            return self._writer.submit(append, self._log, rows.to_batch(), footer, self._give_up)
        written: Future[LogPosition] = Future()
        written.set_result(append(self._log, rows.to_batch(), footer, self._give_up))
        return written

    def _advance(
        self, footer: Mapping[str, Any], released: Sequence[Rows], log: LogPosition | None
    ) -> IngestState:
        """Take the state after a frame, or what would be one."""
        old = self.state
        self.state = IngestState(
            num_released=footer["num_released"],
            watermark=footer["watermark"],
            last_t=int(released[-1].t[-1]) if released else old.last_t,
            partitions=dict(self.admission.partitions),
            held=self.buffer.held(),
            windows={p: recent.window() for p, recent in self.admission.recent.items()},
            counts={**old.counts, **footer["counts"]},
            breaker={**old.breaker, **footer["breaker"]},
            letters=footer["letters"],
            log=log,
        )
        return self.state


def _raise_late(admitted: Iterable[Admitted]) -> None:
    """Raise `LateEvent` at the first event that came too late."""
    for late in (rows.late[0] for rows in admitted if rows.late):
        text = f"{late.text}, or set late to dead_letter or drop"
        raise LateEvent(late.origin.where, "late", text)


def _order_error(row: BadRow, polled: PolledRows, last_t: int) -> StreamError:
    """Return the error of a strict reader whose events go back in time."""
    events, index = polled.rows.events, polled.rows.index
    at = row.index if index is None else int(np.searchsorted(index, row.index))
    before = int(events.t[at - 1]) if at else last_t
    text = f"tick {events.t[at]} comes after tick {before}; times must not decrease"
    way_out = "pass sort=True to read everything first and sort it by time"
    return StreamError(row.origin.where, "time_order", f"{text}: {way_out}")
