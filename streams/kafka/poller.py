"""The thread that reads the broker into a bounded queue, whatever the broker does."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Set

from tgflow.streams.clock import Clock
from tgflow.streams.errors import SourceUnavailable, StreamError
from tgflow.streams.kafka.chunk import Chunk
from tgflow.streams.kafka.config import KafkaConfig
from tgflow.streams.kafka.consumer import ConsumerConnection, NoTopicError
from tgflow.streams.kafka.cursor import Cursor
from tgflow.streams.kafka.retry import RetryState, is_final

MAX_BYTES = 8 << 20
"""Bytes of records after which no more of them are decoded at a time."""

_log = logging.getLogger(__name__)


class Poller:
    """Reads partitions in its own thread, from their cursors on, until it is closed.

    After any failure, a new consumer continues behind what is in the queue. Each partition has
    its share of the queue, so that none can keep another one out; when it is full the partition is
    paused, until half of it has been taken.

    Args:
        config: The topic.
        cursors: Where each partition continues.
        join: New partitions to read from their beginning; None for all there are.
        retry: Counts failures and says how long to wait.
        clock: What to measure by.
    """

    def __init__(
        self,
        config: KafkaConfig,
        cursors: dict[int, Cursor],
        join: Set[int] | None,
        retry: RetryState,
        clock: Clock,
    ) -> None:
        self._config, self._retry, self._clock = config, retry, clock
        self._policy = retry.policy
        self._cursors, self._join = dict(cursors), join
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
        self.started: dict[int, Cursor] | None = None
        """Where each partition started, once that is known and verified."""
        self.known: Set[int] = frozenset()
        self.ends: dict[int, int] = {}
        self.paused_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="tgflow-kafka", daemon=True)
        self._thread.start()

    def wait_started(self, timeout: float) -> bool:
        """Return whether all cursors have been checked and verified within `timeout` seconds.

        Raises:
            StreamError: If the topic does not continue there.
        """
        with self._state:
            self._state.wait_for(lambda: self.started is not None or self._error, timeout)
            if self._error is not None:
                raise self._error
            return self.started is not None

    def take(self, wanted: Set[int], timeout: float) -> list[Chunk]:
        """Return what is in the queue of the partitions `wanted`, waiting for the first of it.

        Raises:
            StreamError: If the source cannot continue, once all before that has been taken.
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
        """Stop reading; a thread that does not end within `timeout` seconds is abandoned."""
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
            if chunk.partition in wanted and num_bytes < MAX_BYTES:
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
                with self._connect() as connection:
                    self._open(connection)
                    self._read(connection)
            except Exception as error:
                try:
                    wait = self._handle(error)
                except StreamError as last:
                    self._give_up(last)
                    return
                self._asked_at = None
                self._stop.wait(wait)
        self._asked_at = None

    def _connect(self) -> ConsumerConnection:
        answer_ms = self._policy.answer_ms
        return ConsumerConnection(self._config, self._cursors, answer_ms, self._heartbeat)

    def _heartbeat(self) -> None:
        self._asked_at = self._clock.monotonic()

    def _handle(self, error: Exception) -> float:
        """Return how long to wait after a failure; raise what ends the source."""
        if isinstance(error, NoTopicError) and self.started is not None:
            return self._retry.note_failure(ConnectionError(error.text))  # it may reappear
        if isinstance(error, NoTopicError):
            raise SourceUnavailable(error.where, error.code, error.text) from error
        if isinstance(error, StreamError):
            raise error
        if self.started is None and is_final(error):
            text = f"{type(error).__name__}: {error}; correct the options of kafka-python"
            raise SourceUnavailable(f"topic {self._config.topic}", "refused", text) from error
        wait = self._retry.note_failure(error, self._behind)
        text = "topic %s: %s: %s; reading again in %.1f s"
        _log.warning(text, self._config.topic, type(error).__name__, error, wait)
        return wait

    def _give_up(self, error: StreamError) -> None:
        self._asked_at = None
        with self._state:
            self._error = error
            self._state.notify_all()

    def _open(self, connection: ConsumerConnection) -> None:
        before = dict(self._cursors)
        self._join_in(connection)
        started = dict(self._cursors)
        moved = [p for p, cursor in sorted(started.items()) if before.get(p) != cursor]
        self._put([connection.first_chunk(p) for p in moved])
        self._update_ends(connection)
        if not self._behind:  # else the broker has yet to show that it returns them
            self._retry.note_contact()
        self._verify(connection, started)

    def _join_in(self, connection: ConsumerConnection) -> None:
        """Open with the partitions that are to join; those that arrive meanwhile join later."""
        with self._state:
            join, self._join = self._join, frozenset()
            self._rejoin = False
        try:
            connection.open(join)
        except Exception:
            with self._state:
                self._join = None if join is None else join | (self._join or frozenset())
            raise

    def _update_ends(self, connection: ConsumerConnection) -> None:
        self.known = connection.partitions()
        self.ends = dict(connection.ends)
        self._behind = connection.behind()

    def _verify(self, connection: ConsumerConnection, started: dict[int, Cursor]) -> None:
        """Read until the records that were read last have arrived again, then report the start."""
        deadline = self._clock.monotonic() + self._policy.verify
        while connection.unverified and not self._stop.is_set():
            connection.pause(set(self._cursors) - connection.unverified)
            self._poll(connection)
            if connection.unverified and self._clock.monotonic() > deadline:
                text = "topic %s: partitions %s: cannot tell whether the topic is the same"
                _log.warning(text, self._config.topic, sorted(connection.unverified))
                break
        with self._state:
            if self.started is None:
                self.started = started
            self._state.notify_all()

    def _read(self, connection: ConsumerConnection) -> None:
        heard = self._clock.monotonic()
        while not self._stop.is_set() and not self._rejoin:
            if all(cursor.ended for cursor in self._cursors.values()):
                self._asked_at = None
                self._stop.wait()
                return
            before = self._clock.monotonic()
            self._steer(connection)
            idle = before - heard > self._policy.idle
            if self._poll(connection) or (idle and self._is_well(connection, heard)):
                heard = self._clock.monotonic()
            self._update_ends(connection)
            if self._full:
                self.paused_seconds += self._clock.monotonic() - before

    def _poll(self, connection: ConsumerConnection) -> bool:
        """Queue what arrives; return whether anything did."""
        chunks = connection.poll(self._config.poll_timeout)
        if chunks:
            self._put(chunks)
            self._retry.note_contact()
        return bool(chunks)

    def _is_well(self, connection: ConsumerConnection, heard: float) -> bool:
        """Ask the broker; return False if it holds records that have not arrived since `heard`.

        Raises:
            TimeoutError: If that has been so for too long, as when it refuses to hand them out.
        """
        asked = self._clock.monotonic()
        connection.probe()
        starving = connection.starving()
        now = self._clock.monotonic()
        if not starving:
            self._retry.note_contact(asked if now - asked > self._policy.slow else None)
            return True
        if now - heard > min(self._policy.starved, self._config.max_outage):
            text = f"no record for {now - heard:.0f} s of partitions {sorted(starving)}"
            way_out = "see whether it may be read, and whether its brokers are well"
            raise TimeoutError(f"{text}, although the topic holds more; {way_out}")
        return False

    def _steer(self, connection: ConsumerConnection) -> None:
        """Pause the partitions that are not wanted, and those with a full share of the queue."""
        share = max(1, sum(not cursor.ended for cursor in self._cursors.values()))
        most, largest = self._config.queue_records / share, self._config.queue_bytes / share
        with self._state:
            for partition in self._cursors:
                held = max(self._held[partition] / most, self._held_bytes[partition] / largest)
                if held >= 1:
                    self._full.add(partition)
                elif held <= 0.5:
                    self._full.discard(partition)
            unwanted = set() if self.wanted is None else set(self._cursors) - self.wanted
        connection.pause(self._full | unwanted)

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
