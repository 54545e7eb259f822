"""From a partitioned source to one sequence of events, each exactly once, in an order of its own.

The sequence is a function of the partitions' contents and the configuration: neither timing, nor
the sizes of polls, nor crashes change it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tgflow.events import EventBatch
from tgflow.ids import NodeIds
from tgflow.streams.ingest.accounting import RowAccounting
from tgflow.streams.ingest.breaker import CircuitBreaker
from tgflow.streams.ingest.config import AFTER_ALL, OrderConfig
from tgflow.streams.ingest.dead_letters import DeadLetterSink
from tgflow.streams.ingest.handed_ids import HandedIds
from tgflow.streams.ingest.idle import IdlePartitions
from tgflow.streams.ingest.ordered_rows import Rows, no_rows
from tgflow.streams.ingest.sequencer import Sequencer, Taken
from tgflow.streams.ingest.state import IngestState, StateHistory
from tgflow.streams.ingest.wal import WriteAheadLog
from tgflow.streams.rows.batch import to_batch
from tgflow.streams.rows.classes import LabelClasses
from tgflow.streams.rows.columns import EventColumns
from tgflow.streams.rows.partitioned import PartitionedSource

MAX_BATCH = 1 << 16
"""Events handed on at a time, at most."""
POLL_SECONDS = 0.1
DISK_FULL_SECONDS = 60.0
"""How long to wait for room when the disk of the log is full."""
REFRESH_SECONDS = 1.0
"""How old the source's lag and counters may be in a report."""


@dataclass(frozen=True, slots=True)
class IngestStatus:
    """What the source said of itself lately."""

    at: float = float("-inf")
    lag: Mapping[int, int] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    progress: float = 0.0


class Ingest:
    """The events of a source in their order: by (t, partition, number of the row in it).

    Iterating polls, refuses what is no event, holds back what may be preceded by others, logs the
    rest and hands it on. With a log it first goes through what the log holds beyond `state`. It can
    be iterated once; iterating again continues where the first left off.

    Args:
        source: Where rows come from; closed when the iteration ends or is closed. Its `ids` must be
            empty, or hold the ids of the first `skip_to` events.
        config: Which rows are taken and how long they are held back.
        letters: Takes the rows that are refused; None drops them, counted.
        accounting: Accounts for all rows; None for a new one.
        breaker: Stops at too many bad rows; None never does.
        log: Where accepted rows are written before they are handed on; None writes none. Then a
            crash is made good from the source alone.
        state: Where to resume; None at the beginning.
        skip_to: Events up to this one have been handed on before: they are not given again. None
            gives all beyond `state`.
        keep_event_ids: Whether `event_ids` can be asked for; the source must have some.
        stop: Asked between polls; once it returns True the iteration ends, with nothing lost.
        clock: Returns seconds that never go back.
        strict: Raise at the first row that is bad or late, after the events before it. The source
            must have one partition.

    Raises:
        ValueError: If an `idle_timeout` is set without a log, which has to remember when it passed.
    """

    def __init__(
        self,
        source: PartitionedSource,
        config: OrderConfig,
        *,
        letters: DeadLetterSink | None = None,
        accounting: RowAccounting | None = None,
        breaker: CircuitBreaker | None = None,
        log: WriteAheadLog | None = None,
        state: IngestState | None = None,
        skip_to: int | None = None,
        keep_event_ids: bool = False,
        stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        strict: bool = False,
    ) -> None:
        if config.idle_timeout is not None and log is None:
            raise ValueError(
                "idle_timeout needs the log, which remembers when it passed; switch the log on"
            )
        state = IngestState() if state is None else state
        self.source = source
        self.accounting = RowAccounting() if accounting is None else accounting
        self._config = config
        self._log = log
        self._skip_to = state.num_released if skip_to is None else skip_to
        self._event_ids = HandedIds(self._skip_to) if keep_event_ids else None
        self._stop = stop
        self._clock = clock
        self._silence = IdlePartitions(source.name, config.idle_timeout, clock)
        self._sequencer = Sequencer(
            source.name,
            config,
            no_rows(source.id_kind, source.x_dim),
            accounting=self.accounting,
            breaker=breaker,
            letters=letters,
            log=log,
            state=state,
            give_up=self._has_waited,
            keep_event_ids=keep_event_ids,
            strict=strict,
        )
        self._first = state
        self._history = StateHistory(state)
        self._looks_for_partitions = False
        self._committed: IngestState | None = None
        self._status = IngestStatus()
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
        state = self._history.at(position)
        state.check()
        if self._log is not None:
            self._log.sync()
        self._looks_for_partitions = True
        return state

    def forget_before(self, position: int) -> None:
        """Let go of what only states before `position` need; call it as often as you like."""
        self._history.at(position)

    def event_ids(self, start: int, stop: int) -> pa.Array:
        """Return the ids of the events `[start, stop)`, which were handed on, as text.

        Forgets those of all events before: `start` may not go back. Null where the log has none, as
        it was written when nobody wanted them. Any thread may ask.
        """
        assert self._event_ids is not None, "they are not kept"
        return self._event_ids.take(start, stop)

    def committed(self, state: IngestState) -> None:
        """Take note that a checkpoint holds `state`: the source learns it at the next poll."""
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
        return self._sequencer.state.num_released

    @property
    def num_buffered(self) -> int:
        """Events held back."""
        return len(self._sequencer.state.held)

    @property
    def watermark(self) -> int:
        """All events before this time have been handed on."""
        return self._sequencer.state.watermark

    @property
    def lag(self) -> Mapping[int, int]:
        """How many records each partition holds that were not polled yet, lately."""
        return self._status.lag

    @property
    def label_classes(self) -> Sequence[str] | None:
        """What the labels 0, 1, ... of events so far were; None if the source numbers no texts."""
        for position in self._sequencer.state.positions.values():
            if "classes" in position:
                return LabelClasses.load(str(position["classes"]), ()).names
        return None

    @property
    def has_polled(self) -> bool:
        """Whether anything was polled, or read from the log, since it was made."""
        return self._sequencer.state is not self._first

    def report(self) -> dict[str, Any]:
        """Return how it stood after the last poll that brought anything, as JSON can hold it."""
        state, status = self._sequencer.state, self._status
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
            "counts": RowAccounting.from_json(state.counts).report(len(state.held)),
            "counters": dict(status.counters),
        }

    def close(self) -> None:
        """End the iteration and close the source."""
        self._events.close()
        self.source.close()

    # The cycle

    def _run(self) -> Generator[EventBatch, None, None]:
        sequencer = self._sequencer
        try:
            for released in sequencer.replay():
                yield from self._emit(released)
            sequencer.go_live()
            self.source.start(sequencer.state.positions)
            while not self._stop() and sequencer.admission.released != AFTER_ALL:
                yield from self._cycle()
            self.accounting.check(len(sequencer.buffer))
        finally:
            sequencer.close()
            self.source.close()

    def _cycle(self) -> Iterator[EventBatch]:
        """Poll once and hand on what that sets free."""
        sequencer, silence = self._sequencer, self._silence
        admission = sequencer.admission
        if joined := self._look_around():  # a state of its own, that checkpoints can go back to
            yield from self._step(Taken(partitions=joined))
        wanted = admission.wanted()
        silence.heard(admission.partitions.keys() - wanted)
        polled = self.source.poll(wanted, POLL_SECONDS)
        silence.heard([rows.partition for rows in polled])
        taken = sequencer.take(polled)
        admission.ended |= self.source.ended() & admission.partitions.keys()
        if admission.ended == admission.partitions.keys():
            sequencer.end()
        self._refresh()
        holding = [p for p in admission.behind() if not admission.is_idle(p)]
        idle = silence.idle(holding, self._status.lag) if len(sequencer.buffer) else []
        admission.make_idle(idle)
        taken.partitions.update(idle)
        if taken.partitions or admission.watermark() > admission.released:
            yield from self._step(taken)
        if taken.error is not None:
            raise taken.error

    def _step(self, taken: Taken) -> Iterator[EventBatch]:
        """Release, log and hand on; ids are given while the log is being written."""
        events = self._cut(self._sequencer.release(taken))
        ready = [self._batch(part) for part in itertools.islice(events, 2)]
        self._history.add(self._sequencer.commit())
        yield from ready
        for part in events:
            yield self._batch(part)

    def _emit(self, released: Sequence[Rows]) -> Iterator[EventBatch]:
        """Hand on what a frame of the log released."""
        self._history.add(self._sequencer.state)
        first = self.num_released - sum(map(len, released))
        for part in self._cut(released, first):
            yield self._batch(part)

    def _batch(self, events: EventColumns) -> EventBatch:
        """Return events as they are handed on."""
        if self._event_ids is not None:
            self._event_ids.add(events.event_id)
        return to_batch(events, self.source.ids)

    def _cut(self, released: Sequence[Rows], first: int | None = None) -> Iterator[EventColumns]:
        """Yield events in parts of at most `MAX_BATCH`, but for those handed on before.

        Args:
            released: The events.
            first: The number of the first of them; None for the next.
        """
        first = self.num_released if first is None else first
        for rows in released:
            start = max(0, self._skip_to - first)
            for at in range(start, len(rows), MAX_BATCH):
                yield rows.events.take(slice(at, at + MAX_BATCH))
            first += len(rows)

    def _has_waited(self, seconds: float) -> bool:
        return self._stop() or seconds >= DISK_FULL_SECONDS

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
        known = self._sequencer.admission.partitions.keys()
        if known and self.num_released < self._skip_to:
            return set()
        new = set(self.source.partitions()) - known
        for partition in new:
            self._sequencer.admission.join(partition)
        return new

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._status.at >= REFRESH_SECONDS:
            source = self.source
            self._status = IngestStatus(now, source.lag(), source.counters(), source.progress())
