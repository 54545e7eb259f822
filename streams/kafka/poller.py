"""The thread that reads the broker into a bounded queue, whatever the broker does."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Set

from tgflow.streams.clock import Clock
from tgflow.streams.errors import SourceUnavailable, StreamError
from tgflow.streams.kafka.config import KafkaConfig
from tgflow.streams.kafka.patience import Patience, is_final
from tgflow.streams.kafka.positions import Place
from tgflow.streams.kafka.session import Chunk, NoTopicError, Session

IDLE = 2.0
"""Seconds without a record after which the broker is asked whether it is there."""
STARVED = 60.0
"""Seconds without a record, while the broker holds more of them, after which it is asked anew."""
SLOW = 1.0
"""Seconds after which an answer counts as an outage that ended."""
TAKEN_BYTES = 8 << 20
"""Bytes of records after which no more of them are decoded at a time."""
VERIFYING = 10.0
"""Seconds that the records read last may take to come again."""

_log = logging.getLogger(__name__)


class Poller:
    """Reads partitions in a thread of its own, from their places on, until it is stopped.

    Any failure makes a new consumer that goes on behind what is in the queue. Each partition has
    its share of the queue, so that none can keep another one out; when it is full the partition is
    paused, until half of it has been taken.

    Args:
        config: The topic.
        places: Where partitions go on.
        join: New partitions to read from their beginning; None for all there are.
        patience: Bears the failures.
        clock: What to measure by.
    """

    def __init__(
        self,
        config: KafkaConfig,
        places: dict[int, Place],
        join: Set[int] | None,
        patience: Patience,
        clock: Clock,
    ) -> None:
        self._config, self._patience, self._clock = config, patience, clock
        self._places, self._join = dict(places), join
        self._state = threading.Condition()
        self._queue: deque[Chunk] = deque()
        self._held: Counter[int] = Counter()
        self._held_bytes: Counter[int] = Counter()
        self._full: set[int] = set()
        self._error: StreamError | None = None
        self._stop = threading.Event()
        self._rejoin = False
        self._behind: dict[int, int] = {}
        self._asked_at: float | None = None
        self.wanted: Set[int] | None = None
        """Partitions to read; the others are paused. None for all."""
        self.started: dict[int, Place] | None = None
        """Where each partition began, once that is known and verified."""
        self.known: Set[int] = frozenset()
        self.ends: dict[int, int] = {}
        self.paused_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="tgflow-kafka", daemon=True)
        self._thread.start()

    def wait_started(self, timeout: float) -> bool:
        """Return whether all places have been found and verified within `timeout` seconds.

        Raises:
            StreamError: If they have been found wrong.
        """
        with self._state:
            self._state.wait_for(lambda: self.started is not None or self._error, timeout)
            if self._error is not None:
                raise self._error
            return self.started is not None

    @property
    def num_queued(self) -> int:
        """How many records wait in the queue."""
        return sum(self._held.values())

    def take(self, wanted: Set[int], timeout: float) -> list[Chunk]:
        """Return what is in the queue of the partitions `wanted`, waiting for the first of it.

        Raises:
            StreamError: If the source cannot go on, once all before that has been taken.
        """
        with self._state:
            self.wanted = wanted
            self._state.wait_for(lambda: self._has(wanted) or self._error, timeout)
            taken = self._dequeue(wanted)
            if not taken and self._error is not None:
                raise self._error
            return taken

    def join(self, partitions: Set[int]) -> None:
        """Read new partitions too, from their beginning."""
        with self._state:
            self._join = (self._join or frozenset()) | partitions
            self._rejoin = True

    def stuck_for(self) -> float:
        """Return for how many seconds the thread has been waiting in one call."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else self._clock.monotonic() - asked_at

    def close(self, timeout: float) -> None:
        """Stop reading; a thread that does not end within `timeout` seconds is left behind."""
        self._stop.set()
        if timeout:
            self._thread.join(timeout)

    def _has(self, wanted: Set[int]) -> bool:
        return any(chunk.partition in wanted for chunk in self._queue)

    def _dequeue(self, wanted: Set[int]) -> list[Chunk]:
        """Take chunks from the queue, a bounded number of bytes at a time."""
        taken: list[Chunk] = []
        left: deque[Chunk] = deque()
        num_bytes = 0
        for chunk in self._queue:
            if chunk.partition in wanted and num_bytes < TAKEN_BYTES:
                taken.append(chunk)
                num_bytes += chunk.num_bytes
            else:
                left.append(chunk)
        self._queue = left
        for chunk in taken:
            self._held[chunk.partition] -= len(chunk.records)
            self._held_bytes[chunk.partition] -= chunk.num_bytes
        return taken

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with Session(self._config, self._places, self._beat) as session:
                    self._open(session)
                    self._read(session)
            except Exception as error:
                try:
                    wait = self._bear(error)
                except StreamError as last:
                    self._give_up(last)
                    return
                self._asked_at = None
                self._stop.wait(wait)
        self._asked_at = None

    def _beat(self) -> None:
        self._asked_at = self._clock.monotonic()

    def _bear(self, error: Exception) -> float:
        """Return how long to wait after a failure; raise what ends the source."""
        if isinstance(error, NoTopicError) and self.started is not None:
            return self._patience.failed(ConnectionError(error.text))  # it may come again
        if isinstance(error, NoTopicError):
            raise SourceUnavailable(error.where, error.code, error.text) from error
        if isinstance(error, StreamError):
            raise error
        if self.started is None and is_final(error):
            text = f"{type(error).__name__}: {error}; mend the options of kafka-python"
            raise SourceUnavailable(f"topic {self._config.topic}", "refused", text) from error
        wait = self._patience.failed(error, self._behind)
        text = "topic %s: %s: %s; reading on in %.1f s"
        _log.warning(text, self._config.topic, type(error).__name__, error, wait)
        return wait

    def _give_up(self, error: StreamError) -> None:
        self._asked_at = None
        with self._state:
            self._error = error
            self._state.notify_all()

    def _open(self, session: Session) -> None:
        before = dict(self._places)
        self._join_in(session)
        begun = dict(self._places)
        moved = [p for p, place in sorted(begun.items()) if before.get(p) != place]
        self._put([session.begun(p) for p in moved])
        self._note(session)
        if not self._behind:  # else it has to show that it hands them out
            self._patience.contact()
        self._verify(session, begun)

    def _join_in(self, session: Session) -> None:
        """Open with the partitions that are to join; those that come meanwhile join later."""
        with self._state:
            join, self._join = self._join, frozenset()
            self._rejoin = False
        try:
            session.open(join)
        except Exception:
            with self._state:
                self._join = None if join is None else join | (self._join or frozenset())
            raise

    def _note(self, session: Session) -> None:
        self.known = session.partitions()
        self.ends = dict(session.ends)
        self._behind = session.behind()

    def _verify(self, session: Session, begun: dict[int, Place]) -> None:
        """Read until the records read last have come again, then say that it has started."""
        deadline = self._clock.monotonic() + VERIFYING
        while session.unverified and not self._stop.is_set():
            session.pause(set(self._places) - session.unverified)
            self._poll(session)
            if session.unverified and self._clock.monotonic() > deadline:
                text = "topic %s: partitions %s: cannot tell whether the topic is the same"
                _log.warning(text, self._config.topic, sorted(session.unverified))
                break
        with self._state:
            if self.started is None:
                self.started = begun
            self._state.notify_all()

    def _read(self, session: Session) -> None:
        heard = self._clock.monotonic()
        while not self._stop.is_set() and not self._rejoin:
            if all(place.ended for place in self._places.values()):
                self._asked_at = None
                self._stop.wait()
                return
            before = self._clock.monotonic()
            self._steer(session)
            idle = before - heard > IDLE
            if self._poll(session) or (idle and self._is_well(session, heard)):
                heard = self._clock.monotonic()
            self._note(session)
            if self._full:
                self.paused_seconds += self._clock.monotonic() - before

    def _poll(self, session: Session) -> bool:
        """Queue what comes; return whether anything did."""
        chunks = session.poll(self._config.poll_timeout)
        if chunks:
            self._put(chunks)
            self._patience.contact()
        return bool(chunks)

    def _is_well(self, session: Session, heard: float) -> bool:
        """Ask the broker; return False if it holds records that have not come since `heard`.

        Raises:
            TimeoutError: If that has been so for too long, as when it refuses to hand them out.
        """
        asked = self._clock.monotonic()
        session.probe()
        starving = session.starving()
        now = self._clock.monotonic()
        if not starving:
            self._patience.contact(asked if now - asked > SLOW else None)
            return True
        if now - heard > min(STARVED, self._config.max_outage):
            text = f"no record for {now - heard:.0f} s of partitions {sorted(starving)}"
            way_out = "see whether it may be read, and whether its brokers are well"
            raise TimeoutError(f"{text}, although the topic holds more; {way_out}")
        return False

    def _steer(self, session: Session) -> None:
        """Pause the partitions that nobody wants, and those with a full share of the queue."""
        share = max(1, sum(not place.ended for place in self._places.values()))
        most, largest = self._config.queue_records / share, self._config.queue_bytes / share
        with self._state:
            for partition in self._places:
                held = max(self._held[partition] / most, self._held_bytes[partition] / largest)
                if held >= 1:
                    self._full.add(partition)
                elif held <= 0.5:
                    self._full.discard(partition)
            unwanted = set() if self.wanted is None else set(self._places) - self.wanted
        session.pause(self._full | unwanted)

    def _put(self, chunks: list[Chunk]) -> None:
        self._asked_at = None
        if self._stop.is_set():
            return
        with self._state:
            for chunk in chunks:
                self._enqueue(chunk)
            self._state.notify_all()

    def _enqueue(self, chunk: Chunk) -> None:
        self._queue.append(chunk)
        self._held[chunk.partition] += len(chunk.records)
        self._held_bytes[chunk.partition] += chunk.num_bytes
