"""From a partitioned source to one sequence of events, each exactly once, in an order of its own.

The sequence is a function of the partitions' contents and the configuration: neither timing, nor
the sizes of polls, nor crashes change it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.durable import fault
from tgflow.durable.log import LogPosition
from tgflow.events import EventBatch
from tgflow.ids import NodeIds
from tgflow.streams.errors import LateEvent
from tgflow.streams.ingest.admission import Admission, Admitted
from tgflow.streams.ingest.books import Books
from tgflow.streams.ingest.breaker import CircuitBreaker
from tgflow.streams.ingest.config import AFTER_ALL, OrderConfig
from tgflow.streams.ingest.counts import Counts, Unbalanced
from tgflow.streams.ingest.dead_letters import DeadLetterSink
from tgflow.streams.ingest.dedup import RecentIds, Seen
from tgflow.streams.ingest.idle import IdlePartitions
from tgflow.streams.ingest.ordered_rows import Rows, concat, no_rows, partitions, sequence
from tgflow.streams.ingest.partition import PartitionState
from tgflow.streams.ingest.reorder import ReorderBuffer
from tgflow.streams.ingest.state import IngestState, StateHistory
from tgflow.streams.ingest.wal import WriteAheadLog, append
from tgflow.streams.rows.batch import event_batch
from tgflow.streams.rows.row_batch import BadRow, PartitionedSource, PolledRows

MAX_BATCH = 1 << 16
"""Events handed on at a time, at most."""
POLL_SECONDS = 0.1
DISK_FULL_SECONDS = 60.0
"""How long to wait for room when the disk of the log is full."""
REFRESH_SECONDS = 1.0
"""How old the source's lag and counters may be in a report."""


@dataclass(frozen=True, slots=True)
class Status:
    """What the source said of itself lately."""

    at: float = float("-inf")
    lag: Mapping[int, int] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    progress: float = 0.0


class Ingest:
    """The events of a source in their order: by (t, partition, number of the row in it).

    Iterating polls, refuses what is no event, holds back what may be preceded by others, logs the
    rest and hands it on. With a log it first goes through what the log holds beyond `state`. It can
    be iterated once; iterating again goes on where the first left off.

    Args:
        source: Where rows come from; closed when the iteration ends or is closed. Its `ids` must be
            empty, or hold the ids of the first `skip_to` events.
        config: Which rows are taken and how long they are held back.
        letters: Takes the rows that are refused; None drops them, counted.
        counts: Counts all rows; None for new ones.
        breaker: Stops at too many bad rows; None never does.
        log: Where accepted rows are written before they are handed on; None writes none. Then a
            crash is made good from the source alone.
        state: Where to go on; None at the beginning.
        skip_to: Events up to this one have been handed on before: they are not given again. None
            gives all beyond `state`.
        stop: Asked between polls; once it returns True the iteration ends, with nothing lost.
        clock: Returns seconds that never go back.

    Raises:
        ValueError: If an `idle_timeout` is set without a log, which has to remember when it passed.
    """

    def __init__(
        self,
        source: PartitionedSource,
        config: OrderConfig,
        *,
        letters: DeadLetterSink | None = None,
        counts: Counts | None = None,
        breaker: CircuitBreaker | None = None,
        log: WriteAheadLog | None = None,
        state: IngestState | None = None,
        skip_to: int | None = None,
        stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if config.idle_timeout is not None and log is None:
            raise ValueError(
                "idle_timeout needs the log, which remembers when it passed; switch the log on"
            )
        state = IngestState() if state is None else state
        self.source = source
        self.counts = Counts() if counts is None else counts
        self._config = config
        self._books = Books(source.name, self.counts, breaker, letters, config.late)
        self._log = log
        self._skip_to = state.num_released if skip_to is None else skip_to
        self._stop = stop
        self._clock = clock
        self._buffer = ReorderBuffer()
        self._gate = Admission(config, self._buffer)
        self._silence = IdlePartitions(source.name, config.idle_timeout, clock)
        self._first = self._state = state
        self._marks = StateHistory(state)
        self._looks_for_partitions = False
        self._committed: IngestState | None = None
        self._status = Status()
        self._events = self._run()

    def __iter__(self) -> Iterator[EventBatch]:
        """Return the events, in batches of at most `MAX_BATCH`.

        Raises:
            LateEvent: If one comes too late and that is an error.
            TooManyBadRecords: If the breaker breaks.
            StreamError: What the source raises.
            LogCorrupt: If the log cannot be read.
            OSError: If log or dead letters cannot be written.
            Unbalanced: If a row got lost, or the log gives another sequence; an error of tgflow's.
        """
        return self._events

    # What the trainer's thread asks

    def state_at(self, position: int) -> IngestState:
        """Return the newest state with `num_released <= position`, and forget those before it.

        For checkpoints: all that it stands for is on the disk when this returns, and new partitions
        are looked for soon. `forget_before` is cheaper.

        Args:
            position: Events the trainer has stored; it may not go back.

        Raises:
            Unbalanced: If a row is not accounted for.
            OSError: If log or dead letters cannot be put on the disk.
        """
        state = self._marks.at(position)
        state.check()
        if self._log is not None:
            self._log.sync()
        self._looks_for_partitions = True
        return state

    def forget_before(self, position: int) -> None:
        """Let go of what only states before `position` need; call it as often as you like."""
        self._marks.at(position)

    def committed(self, state: IngestState) -> None:
        """Hear that a checkpoint holds `state`: the source is told so at the next poll."""
        self._committed = state

    @property
    def ids(self) -> NodeIds:
        """The map that gives dense ids; it knows those of all events handed on."""
        return self.source.ids

    @property
    def unit(self) -> str:
        """What a tick is."""
        return self.source.unit

    @property
    def x_dim(self) -> int:
        """Width of the edge features."""
        return self.source.x_dim

    @property
    def num_events(self) -> int | None:
        """How many rows there will be, or None if that is not known."""
        return self.source.num_events

    @property
    def progress(self) -> float:
        """Which share of the source has been polled, 0 to 1."""
        return self._status.progress

    @property
    def num_released(self) -> int:
        """Events handed on, including those skipped."""
        return self._state.num_released

    @property
    def num_buffered(self) -> int:
        """Events held back."""
        return len(self._state.held)

    @property
    def watermark(self) -> int:
        """All events before this time have been handed on."""
        return self._state.watermark

    @property
    def lag(self) -> Mapping[int, int]:
        """How many records each partition holds that were not polled yet, lately."""
        return self._status.lag

    @property
    def has_polled(self) -> bool:
        """Whether anything was polled, or read from the log, since it was made."""
        return self._state is not self._first

    def report(self) -> dict[str, Any]:
        """Return how it stood after the last poll that brought anything, as JSON can hold it."""
        state, status = self._state, self._status
        late_by = self._config.allowed_lateness
        marks = {str(p): s.front.watermark(late_by) for p, s in state.partitions.items()}
        return {
            "source": self.source.name,
            "num_released": state.num_released,
            "num_buffered": len(state.held),
            "watermark": state.watermark,
            "watermarks": marks,
            "idle": sorted(p for p, s in state.partitions.items() if s.is_idle),
            "lag": {str(p): lag for p, lag in status.lag.items()},
            "counts": Counts.from_json(state.counts).report(len(state.held)),
            "counters": dict(status.counters),
        }

    def close(self) -> None:
        """End the iteration and close the source."""
        self._events.close()
        self.source.close()

    # The cycle

    def _run(self) -> Generator[EventBatch, None, None]:
        try:
            yield from self._replayed()
            self._go_live()
            while not self._stop() and self._gate.released != AFTER_ALL:
                yield from self._cycle()
            self.counts.check(len(self._buffer))
        finally:
            self.source.close()

    def _cycle(self) -> Iterator[EventBatch]:
        """Poll once and hand on what that sets free."""
        gate, silence = self._gate, self._silence
        if joined := self._look_around():  # a state of its own, that checkpoints can go back to
            yield from self._emit(self._settle(self._no_rows(), joined, {}))
        wanted = gate.wanted()
        silence.heard(gate.partitions.keys() - wanted)
        arrivals = self.source.poll(wanted, POLL_SECONDS)
        silence.heard([arrived.partition for arrived in arrivals])
        rows, unlogged = self._take_in(arrivals)
        gate.ended |= self.source.ended() & gate.partitions.keys()
        if gate.ended == gate.partitions.keys():
            self._books.end()
        self._refresh()
        holding = [p for p in gate.behind() if not gate.is_idle(p)]
        idle = silence.idle(holding, self._status.lag) if len(self._buffer) else []
        gate.make_idle(idle)
        changed = {arrived.partition for arrived in arrivals} | set(idle)
        if changed or gate.watermark() > gate.released:
            yield from self._emit(self._settle(rows, changed, unlogged))

    def _take_in(self, arrivals: list[PolledRows]) -> tuple[Rows, dict[str, list[list[int]]]]:
        """Judge rows, and hold back those that are taken.

        Returns:
            The rows taken, and by partition the numbers and event ids of others to remember.
        """
        taken: list[tuple[PolledRows, Admitted]] = []
        unlogged: dict[str, list[list[int]]] = {}
        for arrived in arrivals:
            admitted = self._gate.admit(arrived)
            if admitted.late and self._config.late == "error":
                raise _late_error(admitted.late[0])
            self._buffer.add(admitted.rows)
            taken.append((arrived, admitted))
            if admitted.unlogged is not None:
                seen = unlogged.setdefault(str(arrived.partition), [[], []])
                seen[0].extend(admitted.unlogged.seq.tolist())
                seen[1].extend(admitted.unlogged.ids.tolist())
        self._books.enter(taken)
        parts = [admitted.rows for _, admitted in taken if len(admitted.rows)]
        return (concat(parts) if parts else self._no_rows()), unlogged

    def _settle(
        self,
        rows: Rows,
        changed: set[int],
        unlogged: Mapping[str, list[list[int]]],
    ) -> Rows | None:
        """Release, log and mark what a poll has brought; returns the rows released."""
        gate = self._gate
        gate.released = gate.watermark()
        released = self._buffer.release(gate.released)
        if released is not None:
            self._books.accept(released.rank)
        counts, breaker = self._books.changes()
        footer = {
            "watermark": gate.released,
            "num_released": self.num_released + (0 if released is None else len(released)),
            "num_buffered": len(self._buffer),
            "partitions": {str(p): gate.partitions[p].to_json() for p in sorted(changed)},
            "counts": counts,
            "breaker": breaker,
            "letters": self._books.length,
            "seen": unlogged,
        }
        end = None
        if self._log is not None:  # also what brought no event: footers tell only what has changed
            end = append(self._log, rows.to_batch(), footer, self._has_waited)
        self._mark(footer, released, end)
        return released

    def _has_waited(self, seconds: float) -> bool:
        return self._stop() or seconds >= DISK_FULL_SECONDS

    def _mark(
        self, footer: Mapping[str, Any], released: Rows | None, log: LogPosition | None
    ) -> None:
        """Take the state after a frame, or what would be one."""
        old = self._state
        self._state = IngestState(
            num_released=footer["num_released"],
            watermark=footer["watermark"],
            last_t=old.last_t if released is None else int(released.t[-1]),
            partitions=dict(self._gate.partitions),
            held=self._buffer.held(),
            windows={p: recent.window() for p, recent in self._gate.recent.items()},
            counts={**old.counts, **footer["counts"]},
            breaker={**old.breaker, **footer["breaker"]},
            letters=footer["letters"],
            log=log,
        )
        self._marks.add(self._state)

    def _emit(self, rows: Rows | None) -> Iterator[EventBatch]:
        """Yield what was just released, but for events that were handed on before."""
        if rows is None:
            return
        first = self.num_released - len(rows)
        start = max(0, self._skip_to - first)
        for at in range(start, len(rows), MAX_BATCH):
            events = rows.events.stretch(at, min(at + MAX_BATCH, len(rows)))
            yield event_batch(events, self.source.ids)

    # Going on after a crash

    def _replayed(self) -> Iterator[EventBatch]:
        """Restore the state, and go through what the log holds beyond it."""
        state, gate = self._state, self._gate
        if (rows := state.held.rows()) is not None:
            self._buffer.add(rows)
        gate.partitions.update(state.partitions)
        gate.released = state.watermark
        for partition, window in state.windows.items():
            self._remember(partition, window.seen())
        frames = () if self._log is None else self._log.read(state.log)
        for batch, footer, end in frames:
            yield from self._emit(self._apply(batch, footer, end))

    def _apply(
        self, batch: pa.RecordBatch, footer: Mapping[str, Any], end: LogPosition
    ) -> Rows | None:
        """Do what was done when a frame was written; returns the rows released."""
        gate = self._gate
        if len(batch):
            rows = Rows.from_batch(batch)
            self._buffer.add(rows)
            if rows.event_ids is not None:
                of, seq = partitions(rows.rank), sequence(rows.rank)
                for p in np.unique(of).tolist():
                    self._remember(p, Seen(seq[of == p], rows.event_ids[of == p]))
        for p, columns in footer["seen"].items():
            self._remember(int(p), Seen(*(np.array(column, np.int64) for column in columns)))
        changed = footer["partitions"].items()
        gate.partitions.update({int(p): PartitionState.from_json(state) for p, state in changed})
        gate.released = footer["watermark"]
        released = self._buffer.release(gate.released)
        num_released = self.num_released + (0 if released is None else len(released))
        if (num_released, len(self._buffer)) != (footer["num_released"], footer["num_buffered"]):
            raise Unbalanced(
                f"after the log's frame that ends at {end} {num_released} events were released and "
                f"{len(self._buffer)} held back, but when it was written it were "
                f"{footer['num_released']} and {footer['num_buffered']}"
            )
        self._mark(footer, released, end)
        return released

    def _remember(self, partition: int, seen: Seen) -> None:
        if self._config.dedup_window:
            recent = self._gate.recent
            recent.setdefault(partition, RecentIds(self._config.dedup_window)).remember(seen)

    def _go_live(self) -> None:
        """Put dead letters, counts and the source where the state is."""
        state, gate = self._state, self._gate
        self._books.restore(state.counts, state.breaker, state.letters)
        if gate.released == AFTER_ALL:  # all had ended; should there be more now, it goes on
            gate.released = state.last_t
        fault.point("ingest.before_start")
        self.source.start(state.positions)

    def _look_around(self) -> set[int]:
        """Do what other threads asked for; returns the partitions that have joined.

        Those that the state does not know join only after the events that were handed on before:
        these are without them.
        """
        if self._committed is not None:
            state, self._committed = self._committed, None
            self.source.committed(state.positions)
        if self._looks_for_partitions:
            self._looks_for_partitions = False
            self.source.look_for_partitions()
        known = self._gate.partitions.keys()
        if known and self.num_released < self._skip_to:
            return set()
        new = set(self.source.partitions()) - known
        for partition in new:
            self._gate.join(partition)
        return new

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._status.at >= REFRESH_SECONDS:
            source = self.source
            self._status = Status(now, source.lag(), source.counters(), source.progress())

    def _no_rows(self) -> Rows:
        return no_rows(self.source.id_kind, self.source.x_dim)


def _late_error(row: BadRow) -> LateEvent:
    where = ", ".join(f"{name} {value}" for name, value in row.origin.place.items())
    text = f"{row.text}, or set late to dead_letter or drop"
    return LateEvent(where, "late", text)
