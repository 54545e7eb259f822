"""Merge a partitioned source into one deterministic event sequence, each event exactly once.

The sequence is a function of the partitions' contents and the configuration; timing, poll sizes
and crashes do not affect it. Where a timeout of order expires, the log records what was released,
and replay follows it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.checkpoint.durable.errors import DiskFull
from tgflow.checkpoint.durable.log import DurableLog, LogPosition
from tgflow.graph.events import MICRO_BATCH_END, EventBatch, LateLabels
from tgflow.streams.errors import LateEvent, SourceExpired, TooManyBadRecords
from tgflow.streams.ingest.accounting import RowAccounting, Unbalanced, check_balance, sums
from tgflow.streams.ingest.admission import Admission
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.dead_letters import NO_LETTERS, DeadLetterFiles, Length
from tgflow.streams.ingest.ingest_state import NO_ROWS, IngestState, LabelRows
from tgflow.streams.ingest.late_labels import COUNTS, LateLabelReader
from tgflow.streams.ingest.ordering import no_rows, to_arrow
from tgflow.streams.rows.row_batch import (
    BadRow,
    EventColumns,
    PartitionedSource,
    RowBatch,
    to_batch,
)

MAX_BATCH = 1 << 16
"""Maximum events per batch."""
POLL_SECONDS = 0.1
DISK_FULL_SECONDS = 60.0
"""Seconds between retries while the log's disk is full."""
RETRY_SECONDS = 0.1
REFRESH_SECONDS = 1.0
"""Maximum age of the source's lag and counters in a report."""
WARN_SECONDS = 10.0
"""Seconds of a wait after which a warning names the partition that delays the others."""
MAX_STATES = 64
"""States kept for checkpoints."""

_log = logging.getLogger("tgflow.streams")


class Ingest:
    """Ordered events of a source, sorted by (t, partition, row number in the partition).

    Iteration polls, rejects bad rows, buffers events that others may precede, logs the rest and
    yields it. With a log, it first replays the log beyond `state`. A second iteration continues
    where the first one stopped.

    Args:
        source: Row source; closed when the iteration ends or is closed. Its `ids` must be empty, or
            hold the ids of the first `skip_to` events.
        letters: Receives the rejected rows; None drops them, counted.
        max_bad_ratio: Share of bad rows at which it stops (`RowAccounting`); None never stops.
        log: Receives accepted rows before they are yielded; None writes none. Then after a crash
            the source is read again.
        state: State to resume from; None at the beginning.
        skip_to: Number of events yielded before; they are not yielded again. None yields all beyond
            `state`.
        first: Number of events before those of `source`, of sources that were read before.
        keep_event_ids: Whether to support `event_ids`; the source must have some.
        labels: Reader of labels that come after their events, restored at `state`; closed likewise.
            Those that are not placed by time need a log.
        clock_limit: Whether a time more than a day after its row was written, else after the clock,
            is a bad row. No limit if the length of a tick is unknown.
        stop: Called between polls; once it returns True the iteration ends without loss.

    Raises:
        ValueError: If an `idle_timeout` or an `order_timeout` is set without a log, which has to
            record what was released when it expired.
    """

    def __init__(
        self,
        source: PartitionedSource,
        config: OrderConfig,
        *,
        letters: DeadLetterFiles | None = None,
        max_bad_ratio: float | None = None,
        log: DurableLog | None = None,
        state: IngestState | None = None,
        skip_to: int | None = None,
        first: int = 0,
        keep_event_ids: bool = False,
        labels: LateLabelReader | None = None,
        clock_limit: bool = False,
        stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._idle_timeout, self._order_timeout = timeouts = config.timeouts()
        if min(timeouts) < inf and log is None:
            text = "idle_timeout and order_timeout require the log, which records what was "
            raise ValueError(f"{text}released when they expired; enable the log")
        self.source = source
        self.unit, self.x_dim = source.unit, source.x_dim
        """Unit of a tick; width of the edge features."""
        self.ids = source.ids
        """The map to dense ids, including those of all yielded events."""
        self.first = first
        self.accounting = RowAccounting(source.name, max_bad_ratio)
        self._config = config
        self._letters = letters
        self._log = log
        self._state = self._first = IngestState() if state is None else state
        self._states = [self._state]
        self._states_lock = threading.Lock()
        self._skip_to = self._state.num_released if skip_to is None else skip_to
        self._stop = stop
        self._clock = clock
        none = no_rows(source.id_kind, source.x_dim)
        self._admission = Admission(
            config,
            config.limits(self.unit),
            none,
            keep_event_ids=keep_event_ids,
            clock_unit=self.unit if clock_limit and self.unit != "tick" else None,
        )
        self._writer = ThreadPoolExecutor(1, "tgflow-log")  # its thread starts with the first frame
        self._keep_event_ids = keep_event_ids
        self._id_parts: deque[tuple[int, pa.Array]] = deque()
        self._id_stop = self._skip_to
        self._id_lock = threading.Lock()
        self.labels = labels
        """The reader of labels that come after their events."""
        if labels is not None and letters is not None:
            labels.reject = lambda rows: self._bury(labels.name, rows)
        self._stepping = threading.Lock()
        """Held while the state changes, as labels may come from other threads."""
        self._arrived: list[LabelRows] = []
        """Labels to yield next, which are in the log."""
        self._labels_at = -1
        """Position of the last labels in the log: states there do not have them."""
        self._looks_for_partitions = self._has_started = self._has_ended = False
        self._committed: IngestState | None = None
        self._silence: defaultdict[int, float] = defaultdict(float)
        """Seconds polled without rows, by partition, while it was known to have no more."""
        self._without_rows: defaultdict[int, float] = defaultdict(float)
        """Seconds polled since its last rows, by partition."""
        self._warned: set[int] = set()
        self._has_refused = False
        self._waits_for: Mapping[int, float] = {}
        self._refreshed = float("-inf")
        self.lag: Mapping[int, int] = {}
        """Records not polled yet, by partition, as of the latest refresh."""
        self.progress = 0.0
        """Share of the source polled so far, 0 to 1, as of the latest refresh."""
        self._counters: Mapping[str, float] = {}
        self._events = self._run()

    def __iter__(self) -> Iterator[Any]:
        """Yield the events, in batches of at most `MAX_BATCH`, and `LateLabels` between them.

        Raises:
            LateEvent: If an event is late and the policy is "error".
            TooManyBadRecords: If more rows are bad than `max_bad_ratio` allows.
            StreamError: If the source fails.
            LogCorrupt: If the log cannot be read.
            OSError: If log or dead letters cannot be written.
            Unbalanced: If a row is lost, or the log replays another sequence; a bug in tgflow.
        """
        return self._events

    # Called by the trainer's thread

    def state_at(self, position: int) -> IngestState:
        """Return the newest state with `num_released <= position`, and discard older ones.

        For checkpoints, which sync the log: a lookup of new partitions is scheduled.
        `forget_before` is cheaper.

        Args:
            position: Number of events the trainer has stored; must not decrease.
        """
        self.forget_before(position)
        state = self._states[0]
        check_balance(state.counts, state.num_held)
        self._looks_for_partitions = True
        return state

    def forget_before(self, position: int) -> None:
        """Release state older than `position`. Idempotent."""
        with self._states_lock:
            kept = [i for i, s in enumerate(self._states) if s.num_released <= position]
            if not kept:
                first = self._states[0].num_released
                raise ValueError(f"there is no state at {position}: the oldest kept is at {first}")
            del self._states[: kept[-1]]
            if self.labels is not None:
                self.labels.position = self._states[0].num_released

    def event_ids(self, start: int, stop: int) -> pa.Array:
        """Return the ids of the yielded events `[start, stop)`, as text.

        Discards the ids of all earlier events: `start` must not decrease. Null where the log was
        written without ids. Thread-safe.
        """
        assert self._keep_event_ids, "they are not kept"
        parts = self._id_parts
        with self._id_lock:
            while parts and parts[0][0] + len(parts[0][1]) <= start:
                parts.popleft()
            there = [(max(start, first), first, ids) for first, ids in parts if first < stop]
            found = [ids.slice(at - first, stop - at) for at, first, ids in there]
        return pa.concat_arrays(found) if found else pa.nulls(0, pa.string())

    def committed(self, state: IngestState) -> None:
        """Record that a checkpoint holds `state`; the next poll notifies the source."""
        self._committed = state

    @property
    def num_events(self) -> int | None:
        """Expected number of rows, those of earlier sources included, or None if unknown."""
        num = self.source.num_events
        return None if num is None else self.first + num

    @property
    def is_over(self) -> bool:
        """Whether the source has ended, and all its events were yielded."""
        return self._admission.is_over and self._has_started

    @property
    def num_released(self) -> int:
        """Number of events yielded, including skipped ones."""
        return self._state.num_released

    @property
    def num_buffered(self) -> int:
        """Number of buffered events."""
        return self._state.num_held

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """Texts of the relations and labels 0, 1, ... so far, by column: "relation", "label"."""
        return self._state.classes

    @property
    def has_polled(self) -> bool:
        """Whether anything has been polled, or read from the log, since construction."""
        return self._state is not self._first

    def add_labels(self, rows: RowBatch) -> dict[str, Any]:
        """Add rows of labels at the end of the events released; thread-safe.

        A time of the least int64 is that of the last event. On return they are on disk.

        Returns:
            The position where they stand; the numbers added, corrected, repeated and waiting; and
            `refused`: row, code and reason of each bad row.

        Raises:
            RuntimeError: If the stream has not begun, or has ended.
            OSError: If the log cannot be written; none was added then.
        """
        labels = self.labels
        assert labels is not None
        assert self._log is not None
        with self._stepping:
            if not self._has_started or self._has_ended:
                when = "is still recovering" if not self._has_started else "has ended"
                raise RuntimeError(f"the run {when}, and takes no labels; send them again later")
            before, now = dict(labels.counts), self.num_released
            found, bad = labels.admit(rows, now, self._state.last_t)
            labels.counts["refused"] += len(bad)
            if found.size:
                self._write_labels([found])
                labels.queue(found)
                self._arrived.append(labels.placed(np.empty(0, np.int64), now))
            done = {name: labels.counts[name] - before[name] for name in COUNTS[:3]}
            done["waiting"] = found.size - sum(done.values())
        refused = [{"row": row.index, "code": row.code, "reason": row.text} for row in bad]
        return {"position": now, **done, "refused": refused}

    def report(self) -> dict[str, Any]:
        """Return a JSON-serializable report as of the last poll that returned rows."""
        state, lateness = self._state, self._admission.limits[0]
        totals = sums(state.counts, state.num_held)
        partitions = {
            p: {name: value for name, value in entry.items() if name != "recent_bad"}
            for p, entry in state.counts.items()
        }
        return {
            "source": self.source.name,
            "num_released": state.num_released,
            "num_buffered": state.num_held,
            "watermark": state.watermark,
            "watermarks": {str(p): s.watermark(lateness) for p, s in state.partitions.items()},
            "idle": sorted(p for p, s in state.partitions.items() if s.is_idle),
            "lag": {str(p): lag for p, lag in self.lag.items()},
            "counts": totals | {"partitions": partitions},
            "counters": dict(self._counters),
            **({} if self.labels is None else {"labels": self.labels.report()}),
        }

    def waits(self) -> dict[str, float]:
        """Return the partitions that buffered events wait for, with their seconds of silence."""
        return {str(p): seconds for p, seconds in self._waits_for.items()}

    def close(self) -> None:
        """End the iteration and close the source."""
        self._events.close()
        self.source.close()
        if self.labels is not None:
            self.labels.close()

    # The cycle: poll, admit, release, log, yield

    def _run(self) -> Generator[EventBatch | LateLabels, None, None]:
        try:
            yield from self._replay()
            self._start()
            labels, admission = self.labels, self._admission
            while not self._stop() and not (admission.is_over and (not labels or labels.is_over)):
                yield from self._cycle()
            with self._stepping:
                self._has_ended = True
                if admission.is_over and labels and (found := labels.rest(self.num_released)):
                    # behind the last event, and before those that follow
                    self._write_labels(found, sync=False)
                    state, pending = labels.state(), labels.pending
                    self._record(replace(self._state, labels=state, pending=pending))
            yield from self._placed(self._taken())
            check_balance(self.accounting.counts, admission.num_buffered)
        finally:
            self._has_ended = True
            self._writer.shutdown()
            self.source.close()
            if self.labels is not None:
                self.labels.close()

    def _cycle(self) -> Iterator[EventBatch | LateLabels]:
        if self.labels is not None:
            yield from self._read_labels(self.labels)
            if self._admission.is_over:
                return
        admission = self._admission
        if joined := self._look_around():  # gets a state of its own for checkpoints
            admission.join(joined)
            yield from self._step()
        wanted, began = admission.wanted(), self._clock()
        polled = self.source.poll(wanted, POLL_SECONDS)
        self._admit(polled)
        if admission.end(self.source.ended()):
            self.accounting.check_share()
        if self._clock() - self._refreshed >= REFRESH_SECONDS:
            self._refreshed = self._clock()
            self.lag, self._counters = self.source.lag(), self.source.counters()
            self.progress = self.source.progress()
        elif polled and not self.progress:  # the first rows came after an empty poll
            self.progress = self.source.progress()
        active = {rows.partition for rows in polled}
        seconds = self._clock() - began
        silent = self._silent(seconds, active)
        self._note_waits(seconds, active | (admission.partitions - wanted))
        if admission.can_release(silent):
            yield from self._step(silent)

    def _look_around(self) -> Set[int]:
        """Handle requests of other threads; return the partitions that join."""
        if self._committed is not None:
            state, self._committed = self._committed, None
            self.source.committed(state.positions)
        if self._looks_for_partitions:
            self._looks_for_partitions = False
            self.source.look_for_partitions()
        known = self._admission.partitions
        if known and self.num_released < self._skip_to:  # the order of these lacks new ones
            return set()
        return set(self.source.partitions()) - known

    def _admit(self, polled: Sequence[RowBatch]) -> None:
        """Admit and account for rows; dead letters are durable on return."""
        late = self._config.late
        rejected: list[BadRow] = []
        broken: TooManyBadRecords | None = None
        for rows in polled:
            admitted = self._admission.admit(rows)
            for row in admitted.rejected:
                if row.code == "late" and late == "error":
                    text = f"{row.text}, sort the whole file with sort=True, or pass "
                    text += "late='dead_letter' or late='drop'"
                    raise LateEvent(row.origin.where, "late", text)
                if row.code != "late" or late == "dead_letter":
                    rejected.append(row)
                if row.code == "time_jump" and not self._has_refused:
                    self._has_refused = True
                    _log.warning("%s: %s; such rows are refused", row.origin.where, row.text)
            try:
                self.accounting.enter(rows, admitted)
            except TooManyBadRecords as error:  # rows after it are not kept
                broken = error
                while rejected[-1] is not error.row:
                    rejected.pop()
                break
        self._bury(self.source.name, rejected)
        if broken is not None:
            raise broken

    def _bury(self, name: str, rejected: Sequence[BadRow]) -> None:
        if self._letters is not None and rejected:
            self._letters.write(name, rejected)
            self._letters.sync()

    def _silent(self, seconds: float, active: Set[int]) -> Set[int]:
        """Mark idle partitions; return those without rows for `order_timeout`."""
        # their clocks stand still while events are learned, in outages and under back-pressure
        caught_up = self.source.caught_up()
        for partition in active:
            self._silence[partition] = 0.0
        for partition in caught_up - active:
            self._silence[partition] += seconds
        self._admission.set_idle({p for p in caught_up if self._silence[p] >= self._idle_timeout})
        if not caught_up >= self._admission.live:
            return frozenset()
        return {p for p in caught_up if self._silence[p] >= self._order_timeout}

    def _note_waits(self, seconds: float, active: Set[int]) -> None:
        """Note the partitions that events wait for; warn of each that is silent for long."""
        for partition in self._admission.partitions:
            self._without_rows[partition] += seconds
        self._without_rows.update(dict.fromkeys(active, 0.0))
        self._warned -= active
        self._waits_for = {p: self._without_rows[p] for p in self._admission.holding()}
        for partition, waited in self._waits_for.items():
            if waited >= WARN_SECONDS and partition not in self._warned:
                self._warned.add(partition)
                text = "%s: partition %d has been silent for %.0f s and delays the others; %s"
                why = "the source does not confirm that it was read to its end"
                if self._idle_timeout == inf:
                    why = "set idle_timeout to continue without it"
                _log.warning(text, self.source.name, partition, waited, why)

    def _step(self, silent: Set[int] = frozenset()) -> Iterator[EventBatch | LateLabels]:
        """Release events that nothing can precede, and yield them once the step is in the log."""
        with self._stepping:
            first = self.num_released
            admitted, released, footer = self._admission.release(silent)
            self.accounting.accept(released.rank)
            placed = self._taken()
            if (labels := self.labels) is not None and len(released):
                labels.keep(keys := labels.keys_of(released), released.t)
                self._write_labels(labels.due(released.t, first), sync=False)
                placed.append(labels.placed(keys, first))
                # before the events: a crash in between leaves the labels for these, released again
            footer |= {
                "num_released": first + len(released),
                "counts": self.accounting.changes(),
                "letters": self._length,
            }
            batches = self._batches(released, first, placed)
            if self._log is None:
                ready: list[EventBatch | LateLabels] = []
                self._advance(footer, released, None)
            else:  # also for empty polls: a footer holds only the changes since the last
                frame = to_arrow(EventColumns.concat(admitted))
                writing = self._writer.submit(self._append, frame, footer)
                ready = list(itertools.islice(batches, 2))
                self._advance(footer, released, writing.result())
        yield from ready
        yield from batches

    def _read_labels(self, labels: LateLabelReader) -> Iterator[LateLabels]:
        """Log and yield labels that stand behind all events released."""
        wait = POLL_SECONDS if self._admission.is_over else 0.0
        with self._stepping:
            now = self.num_released
            if arrived := labels.arrived(now, wait):
                self._write_labels(arrived)
                self._arrived.append(labels.placed(np.empty(0, np.int64), now))
            placed = self._taken()
        yield from self._placed(placed)

    @property
    def _length(self) -> Length:
        return NO_LETTERS if self._letters is None else self._letters.length

    def _taken(self) -> list[LabelRows]:
        taken, self._arrived = self._arrived, []
        return taken

    def _write_labels(self, found: Sequence[LabelRows], *, sync: bool = True) -> None:
        """Log rows of labels, which are on disk on return where timing determined their place."""
        if self.labels is None or not found:
            return
        rows, state = LabelRows.joined(found), self.labels.state()
        footer = {"kind": "labels", "is_timed": sync, "letters": self._length, "labels": state}
        log = None if self._log is None else self._append(rows.to_arrow(), footer, sync=sync)
        self._note_labels(rows, footer, log)

    def _note_labels(
        self, rows: LabelRows, footer: Mapping[str, Any], log: LogPosition | None
    ) -> None:
        """Continue after a frame of labels; a checkpoint cannot if they are yielded at once."""
        if footer["is_timed"] and rows.size:
            self._labels_at = self.num_released
        self._state = replace(self._state, letters=footer["letters"], log=log)

    def _append(
        self, frame: pa.RecordBatch, footer: Mapping[str, Any], *, sync: bool = False
    ) -> LogPosition:
        """Append a frame to the log and return the position after it; wait while disk is full."""
        assert self._log is not None
        seconds, end = 0.0, None
        while True:
            try:
                if end is None:
                    end = self._log.append(frame, footer)
                if sync or footer["kind"] == "forced":
                    self._log.sync()
                return end
            except DiskFull:
                if self._stop() or seconds >= DISK_FULL_SECONDS:
                    raise
                time.sleep(RETRY_SECONDS)
                seconds += RETRY_SECONDS

    def _advance(
        self, footer: Mapping[str, Any], released: EventColumns, log: LogPosition | None
    ) -> None:
        """Store the state after a frame (or after the step, without a log)."""
        old, labels = self._state, self.labels
        new = IngestState(
            num_released=footer["num_released"],
            last_t=int(released.t[-1]) if len(released) else old.last_t,
            counts={**old.counts, **footer["counts"]},
            letters=footer["letters"],
            log=log,
            labels=None if labels is None else labels.state(),
            pending=NO_ROWS if labels is None else labels.pending,
            **self._admission.snapshot(),
        )
        self._record(new)

    def _record(self, state: IngestState) -> None:
        """Make a state the present one, and keep it for checkpoints."""
        self._state = state
        if state.num_released <= self._labels_at:
            return
        with self._states_lock:
            if self._states[-1].num_released == state.num_released:
                self._states.pop()
            self._states.append(state)
            if len(self._states) > MAX_STATES:  # then checkpoints resume from further back
                del self._states[1:-1:2]

    def _batches(
        self, released: EventColumns, first: int, placed: Sequence[LabelRows] = ()
    ) -> Iterator[EventBatch | LateLabels]:
        """Yield events, the first of which has number `first`, except those yielded before."""
        labels = LabelRows.joined(placed) if placed else NO_ROWS
        for at in range(max(0, self._skip_to - first), len(released), MAX_BATCH):
            events = released.take(slice(at, at + MAX_BATCH))
            if self._keep_event_ids:
                with self._id_lock:
                    self._id_parts.append((self._id_stop, events.event_id))
                    self._id_stop += len(events)
            batch = to_batch(events, self.source.ids)
            stop = int(np.searchsorted(labels.at, first + at + len(batch)))
            here, labels = labels.take(slice(stop)), labels.take(slice(stop, None))
            yield from here.take(here.at >= self._skip_to).among(batch, first + at)
        yield from self._placed([labels])

    def _placed(self, placed: Sequence[LabelRows]) -> Iterator[LateLabels]:
        """Yield labels, except those that a checkpoint has."""
        for rows in placed:
            if (new := rows.take(rows.at >= self._skip_to)).size:
                yield new.entries()

    # Resuming

    def _replay(self) -> Iterator[EventBatch | LateLabels]:
        """Restore the state, and yield the events released by log frames beyond it."""
        state, admission = self._state, self._admission
        admission.restore(state)
        for frame, footer, end in () if self._log is None else self._log.read(state.log):
            first, placed = self.num_released, list[LabelRows]()
            if footer["kind"] == "labels":
                yield from self._repeat_labels(LabelRows.of(frame), footer, end)
                continue
            released = admission.repeat(frame, footer)
            if (labels := self.labels) is not None and len(released):
                labels.keep(keys := labels.keys_of(released), released.t)
                placed = [labels.placed(keys, first)]
            found = first + len(released), admission.num_buffered
            if found != (footer["num_released"], footer["num_buffered"]):
                text = f"after the log's frame that ends at {end} {found[0]} events were released "
                text += f"and {found[1]} held back, but the log recorded {footer['num_released']} "
                raise Unbalanced(f"{text}and {footer['num_buffered']}")
            self._advance(footer, released, end)
            yield from self._batches(released, first, placed)
            if admission.is_over:  # so did the last micro-batch of the source that ended here
                yield MICRO_BATCH_END

    def _repeat_labels(
        self, rows: LabelRows, footer: Mapping[str, Any], end: LogPosition
    ) -> Iterator[LateLabels]:
        if (labels := self.labels) is None:
            text = "the log has labels that came after their events; resume with --label-stream or "
            raise SourceExpired(self.source.name, "schema", f"{text}--label-token, as before")
        now = self.num_released
        labels.repeat(footer["labels"])
        labels.queue(rows)
        self._note_labels(rows, footer, end)
        if footer["is_timed"]:
            yield from self._placed([labels.placed(np.empty(0, np.int64), now)])

    def _start(self) -> None:
        state = self._state
        if state.num_released < self.first:
            text = f"it follows event {self.first:,}, and log and checkpoints hold only "
            text += f"{state.num_released:,} events; start over with another --out"
            raise SourceExpired(self.source.name, "schema", text)
        self.accounting.restore(state.counts)
        if self._letters is not None:
            self._letters.rewind(NO_LETTERS if state.letters is None else state.letters)
        self._admission.resume(state.last_t)
        idle = [p for p, partition in state.partitions.items() if partition.is_idle]
        self._silence |= dict.fromkeys(idle, self._idle_timeout)  # once their end is confirmed
        self.source.start(state.positions)
        if self.labels is not None:
            self.labels.start()
        self._has_started = True
