"""Reads the partitions of a topic into a bounded queue in a thread, and survives outages."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from tgflow.checkpoint.typed import read_as
from tgflow.streams.errors import (
    NoTopicError,
    SourceExpired,
    SourceMismatch,
    SourceTruncated,
    StreamError,
)
from tgflow.streams.kafka.config import FIXED_OPTIONS, KafkaConfig, kafka_client
from tgflow.streams.kafka.retry import (
    ClientWatch,
    RetryState,
    checking_options,
    is_final,
    refused,
    said,
)
from tgflow.streams.rows.row_batch import Position

_RECREATED = "the topic was recreated, or this is another broker: start a new run to read it"
MAX_BYTES = 8 << 20
"""Maximum record bytes decoded at a time."""
_SOON_SECONDS = 0.1
"""Timeout of a poll after records; if none follow, the ends are requested."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position in a partition.

    Args:
        offset: Offset of the next record.
        anchor: Offset of the previous record, None at the beginning; if that record has changed, so
            has the topic.
        anchor_crc: CRC-32C of its key and value.
        anchor_t: Its timestamp in milliseconds, -1 without one.
        end: Offset where the partition ends for this run, None if it never does.
    """

    offset: int
    anchor: int | None = None
    anchor_crc: int | None = None
    anchor_t: int | None = None
    end: int | None = None

    @property
    def start(self) -> int:
        """Offset at which to start reading, such that the anchor comes first."""
        return self.offset if self.anchor is None else self.anchor

    @property
    def ended(self) -> bool:
        """Whether the end has been reached."""
        return self.end is not None and self.offset >= self.end

    def after(self, record: Any) -> Cursor:
        """Return the cursor after a record."""
        t = -1 if record.timestamp is None else record.timestamp
        from crc32c import crc32c

        crc = crc32c(record.value or b"", crc32c(record.key or b""))
        return Cursor(record.offset + 1, record.offset, crc, t, self.end)

    @classmethod
    def from_position(cls, position: Position) -> Cursor:
        """Return the cursor saved in a checkpoint."""
        there = {field.name: position.get(field.name) for field in fields(cls)}
        found: Cursor = read_as(cls, there, "position")
        anchor = found.anchor, found.anchor_crc, found.anchor_t
        if found.offset < 0 or len({x is None for x in anchor}) > 1:
            raise ValueError(f"{position!r} is not a position in a Kafka partition")
        return found


@dataclass(frozen=True)
class Chunk:
    """Consecutive records of one partition."""

    partition: int
    records: Sequence[Any]
    cursor: Cursor
    counts: Mapping[str, int]
    gaps: Sequence[tuple[int, int]] = ()

    @cached_property
    def num_bytes(self) -> int:
        """Total bytes of the record values."""
        return sum(len(record.value) for record in self.records if record.value is not None)


class ConsumerConnection:
    """A consumer that reads partitions from their cursors until its first failure."""

    def __init__(
        self,
        config: KafkaConfig,
        cursors: dict[int, Cursor],
        answer_ms: int,
        heartbeat: Callable[[], None],
        number: int | None = None,
    ) -> None:
        self._config, self._cursors, self._number = config, cursors, number
        self._answer_ms, self._heartbeat = answer_ms, heartbeat
        self._name = f"topic {config.topic}"
        self._kafka = kafka_client()
        self._consumer: Any = None
        self._reading: set[int] = set()
        self._paused: set[int] = set()
        self._in_part: int | None = None
        self.watch = ClientWatch()
        self.unverified: set[int] = set()
        """Partitions whose anchor has not arrived yet."""
        self.ends: dict[int, int] = {}
        """End offset of each partition as last reported by the broker."""

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close(autocommit=False, timeout_ms=1000)

    def open(self, join: Collection[int] | None) -> list[Chunk]:
        """Connect, check every cursor against the broker's offsets, and seek to it.

        Returns an empty chunk for each partition that is new or cannot continue at its cursor,
        with its position and the expired gap before it.
        """
        self._heartbeat()
        options = self._config.client_options()
        with checking_options():
            self._consumer = self._kafka.KafkaConsumer(kafka_client=self.watch, **options)
        self._heartbeat()
        self._consumer.bootstrap(timeout_ms=self._answer_ms)  # later requests may block for ever
        if not (there := self.partitions()):
            if num := len(self._consumer.partitions_for_topic(self._config.topic) or ()):
                text = f"it has {num} partitions, and decoders={self._config.decoders}; give fewer"
                raise SourceMismatch(self._name, "mismatch", text)
            text = "there is no such topic on this broker, or this user may not see it; "
            text += "create it, or correct the URL"
            raise NoTopicError(self._name, "no_topic", text)
        new = set(there if join is None else join) - set(self._cursors)
        if gone := sorted(set(self._cursors) - there):
            text = f"partition {gone[0]} is gone, the topic has {len(there)}; {_RECREATED}"
            raise SourceTruncated(self._name, "truncated", text)
        topics = [self._tp(p) for p in {*self._cursors, *new}]
        self._heartbeat()
        begins = self._consumer.beginning_offsets(topics, timeout_ms=self._answer_ms)
        self._heartbeat()
        ends = self._consumer.end_offsets(topics, timeout_ms=self._answer_ms)
        moved = [self._resolve(tp.partition, begins[tp], ends[tp]) for tp in topics]
        self._reading = {p for p, cursor in self._cursors.items() if not cursor.ended}
        self._consumer.assign([self._tp(p) for p in self._reading])
        for partition in self._reading:
            self._consumer.seek(self._tp(partition), self._cursors[partition].start)
        self.unverified &= self._reading
        return [chunk for chunk in moved if chunk is not None]

    def _resolve(self, partition: int, begin: int, end: int) -> Chunk | None:
        """Decide where to continue in a partition that holds the offsets `[begin, end)`."""
        before = self._cursors.get(partition)
        cursor, counts, gaps = before or Cursor(begin), {}, []
        self.ends[partition] = end
        if cursor.offset > end:
            text = f"partition {partition} ends at offset {end}, before {cursor.offset}, which "
            raise SourceTruncated(self._name, "truncated", f"{text}comes next; {_RECREATED}")
        if cursor.offset < begin:
            lost = f"offsets {cursor.offset} to {begin - 1} of partition {partition} are "
            lost += "no longer kept"
            if self._config.on_expired == "fail":
                text = f"{lost}; pass on_expired='skip' to continue without them, or start a "
                raise SourceExpired(self._name, "expired", f"{text}new run")
            _log.warning("%s: %s; continuing without them", self._name, lost)
            counts, gaps = {"gap": begin - cursor.offset}, [(cursor.offset, begin)]
            cursor = Cursor(begin, end=cursor.end)
        elif cursor.start < begin:
            self._warn_unproven(partition, f"the record at {cursor.anchor} has expired")
            cursor = Cursor(cursor.offset, end=cursor.end)
        elif cursor.anchor is not None:
            self.unverified.add(partition)
        until = (end if cursor.end is None else cursor.end) if self._config.until_end else None
        self._cursors[partition] = cursor = replace(cursor, end=until)
        return None if cursor == before else Chunk(partition, [], cursor, counts, gaps)

    def partitions(self) -> frozenset[int]:
        """Return the partitions of the topic that are read here, from the latest metadata."""
        self._heartbeat()
        found: Set[int] = self._consumer.partitions_for_topic(self._config.topic) or set()
        number, num = self._number, self._config.decoders
        return frozenset(p for p in found if number is None or p % num == number)

    def behind(self) -> dict[int, int]:
        """Return the partitions with unread records, and the offset where each continues."""
        cursors = {p: self._cursors[p] for p in self._reading}
        return {p: cursor.offset for p, cursor in cursors.items() if cursor.offset < self._until(p)}

    def starving(self) -> set[int]:
        """Return the partitions that are not paused and have records that have not arrived."""
        behind = self.behind().keys() - self._paused
        return {p for p in behind if self._position(p) < self._until(p)}

    def pause(self, partitions: Collection[int]) -> None:
        """Read all partitions but these, until the next call.

        A partition whose last fetch was returned in part is paused only if all are: kafka-python
        sets the rest aside, and would not read it again once another partition was read.
        """
        assigned = {tp.partition for tp in self._consumer.assignment()}
        wanted = assigned & set(partitions)
        if wanted != assigned:
            wanted.discard(self._in_part)
        self._consumer.pause(*(self._tp(p) for p in wanted - self._paused))
        self._consumer.resume(*(self._tp(p) for p in self._paused - wanted))
        self._paused = wanted

    def poll(self, timeout: float) -> list[Chunk]:
        """Return the records that have arrived, waiting up to `timeout` seconds."""
        self._heartbeat()
        found = self._consumer.poll(timeout_ms=int(timeout * 1000))
        num_records = sum(map(len, found.values()))
        if num_records == FIXED_OPTIONS["max_poll_records"]:
            self._in_part = next(reversed(found)).partition  # the limit was hit: perhaps incomplete
        elif num_records or self._in_part not in self._paused:
            self._in_part = None
        chunks = [self._chunk(tp.partition, records) for tp, records in found.items()]
        for tp in self._consumer.assignment():
            if (high := self._consumer.highwater(tp)) is not None:
                self.ends[tp.partition] = high
        chunks += self._ended_without_record({chunk.partition for chunk in chunks})
        return [chunk for chunk in chunks if chunk.records or chunk.counts or chunk.cursor.ended]

    def probe(self) -> set[int]:
        """Request the end offsets, which also checks that the broker is reachable.

        Returns the partitions that have been read to them.
        """
        self._heartbeat()
        topics = [self._tp(p) for p in self._cursors]
        ends = self._consumer.end_offsets(topics, timeout_ms=self._answer_ms)
        self.ends |= {tp.partition: end for tp, end in ends.items()}
        reading = self._reading - self.unverified
        return {p for p in reading if self._position(p) >= self.ends[p]}

    def _tp(self, partition: int) -> Any:
        return self._kafka.TopicPartition(self._config.topic, partition)

    def _until(self, partition: int) -> int:
        end, until = self.ends.get(partition, 0), self._cursors[partition].end
        return end if until is None else min(end, until)

    def _position(self, partition: int) -> int:
        """Return the next fetch offset, after markers such as the end of a transaction."""
        return int(self._consumer.position(self._tp(partition), timeout_ms=self._answer_ms))

    def _chunk(self, partition: int, polled: Sequence[Any]) -> Chunk:
        """Return the records that follow the partition's cursor, and move it past them."""
        cursor = self._cursors[partition]
        verifying = partition in self.unverified
        following = cursor.start if verifying else cursor.offset
        records: list[Any] = []
        for record in polled:
            if record.offset >= following:
                records.append(record)
                following = record.offset + 1
        repeated = len(polled) - len(records)
        if verifying and records:
            records = self._verify_anchor(partition, cursor, records)
        until = cursor.end
        if until is not None and records and records[-1].offset >= until:
            records = [record for record in records if record.offset < until]
            cursor = replace(cursor, offset=until)
        if records:
            behind = cursor.after(records[-1])
            cursor = replace(behind, offset=max(behind.offset, cursor.offset))
        self._cursors[partition] = cursor
        return Chunk(partition, records, cursor, {"repeated": repeated} if repeated else {})

    def _verify_anchor(self, partition: int, cursor: Cursor, records: list[Any]) -> list[Any]:
        """Return the records without the anchor, once it has been found unchanged."""
        self.unverified.discard(partition)
        if records[0].offset > cursor.start:
            self._warn_unproven(partition, f"the record at {cursor.offset - 1} is gone")
            return records
        found = cursor.after(records[0])
        if replace(found, offset=cursor.offset) != cursor:
            text = f"offset {cursor.anchor} of partition {partition} is not the record"
            raise SourceMismatch(self._name, "mismatch", f"{text} that was read; {_RECREATED}")
        return records[1:]

    def _warn_unproven(self, partition: int, why: str) -> None:
        text = "%s, partition %d: %s; cannot tell whether the topic is the one that was read"
        _log.warning(text, self._name, partition, why)

    def _ended_without_record(self, found: Collection[int]) -> Iterable[Chunk]:
        """Yield the partitions that end with a marker, such as the end of a transaction."""
        for tp in self._consumer.assignment():
            cursor = self._cursors[tp.partition]
            if cursor.end is None or cursor.ended or tp.partition in found:
                continue
            if self._position(tp.partition) >= cursor.end:
                self._cursors[tp.partition] = replace(cursor, offset=cursor.end)
                yield Chunk(tp.partition, [], self._cursors[tp.partition], {})


class Poller:
    """Reads partitions in a thread, from their cursors, until it is closed.

    After any failure a new consumer continues after the records in the queue. Each partition has
    its share of the queue, so that none can block another; a partition with a full share is paused
    until half of it has been taken.
    """

    def __init__(
        self,
        config: KafkaConfig,
        cursors: dict[int, Cursor],
        join: Set[int] | None,
        retry: RetryState,
        number: int | None = None,
    ) -> None:
        self._config, self._number = config, number
        self._retry, self._policy = retry, retry.policy
        self._cursors, self._join = dict(cursors), join
        self._state = threading.Condition()
        self._queue: list[Chunk] = []
        self._full: set[int] = set()
        self._error: StreamError | None = None
        self._stop = threading.Event()
        self._rejoin = False
        self._behind: dict[int, int] = {}
        self._asked_at: float | None = None
        self.watch = ClientWatch()
        self._at_end: dict[int, float] = {}
        """When partitions without later records were last found to be read to their end."""
        self._looked_at, self._is_new = float("-inf"), True
        """When the ends were requested last, and whether records have arrived since."""
        self.started: dict[int, Cursor] | None = None
        """Start position of each partition, once known and verified."""
        self.known: Set[int] = frozenset()
        self.ends: dict[int, int] = {}
        self.paused_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="tgflow-kafka", daemon=True)
        self._thread.start()

    @property
    def reason(self) -> str:
        """Why the client has no connection, empty if it has one."""
        failure = self.watch.failure
        return "" if failure is None else said(failure)

    def wait_started(self, timeout: float) -> bool:
        """Return whether all cursors have been checked and verified within `timeout` seconds."""
        with self._state:
            self._state.wait_for(lambda: self.started is not None or self._error, timeout)
            if self._error is not None:
                raise self._error
            return self.started is not None

    def take(self, wanted: Set[int], timeout: float) -> list[Chunk]:
        """Return queued chunks of the partitions `wanted`, waiting for the first one."""
        with self._state:
            self._state.wait_for(
                lambda: self._error or any(chunk.partition in wanted for chunk in self._queue),
                timeout,
            )
            taken, num_bytes, queued, self._queue = list[Chunk](), 0, self._queue, []
            for chunk in queued:
                is_taken = chunk.partition in wanted and num_bytes < MAX_BYTES
                (taken if is_taken else self._queue).append(chunk)
                num_bytes += chunk.num_bytes if is_taken else 0
            if not taken and self._error is not None:
                raise self._error
            return taken

    def caught_up(self) -> Set[int]:
        """Return the partitions taken completely, by ends requested in the last seconds."""
        with self._state:
            queued = {chunk.partition for chunk in self._queue}
            since = time.monotonic() - self._policy.fresh
            return {p for p, at in self._at_end.items() if at >= since} - queued

    def join(self, partitions: Set[int]) -> None:
        """Read new partitions too, from their beginning."""
        with self._state:
            self._join = (self._join or frozenset()) | partitions
            self._rejoin = True

    def stuck_for(self) -> float:
        """Return the seconds that the thread has spent in the current call."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def close(self, timeout: float) -> None:
        """Stop reading; a thread that does not end within `timeout` seconds is abandoned."""
        self._stop.set()
        if timeout:
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                answer_ms, beat = int(1000 * self._policy.answer), self._heartbeat
                with closing(
                    ConsumerConnection(self._config, self._cursors, answer_ms, beat, self._number)
                ) as connection:
                    self.watch = connection.watch
                    self._open(connection)
                    self._read(connection)
            except Exception as error:
                try:
                    wait = self._handle(error)
                except StreamError as last:
                    self._asked_at = None
                    with self._state:
                        self._error = last
                        self._state.notify_all()
                    return
                self._asked_at = None
                self._stop.wait(wait)
        self._asked_at = None

    def _heartbeat(self) -> None:
        self._asked_at = time.monotonic()

    def _handle(self, error: Exception) -> float:
        """Return the wait after a failure in seconds; raise if the error is final."""
        with self._state:
            self._at_end.clear()
        if isinstance(error, NoTopicError) and self.started is not None:
            return self._retry.note_failure(ConnectionError(error.text))  # it may reappear
        if isinstance(error, StreamError):
            raise error
        kafka = kafka_client()
        denied = kafka.errors.AuthorizationError, kafka.errors.UnsupportedCodecError
        if is_final(error) and (self.started is None or isinstance(error, denied)):
            raise refused(f"topic {self._config.topic}", error) from error
        wait = self._retry.note_failure(error, self._behind)
        text = "topic %s: %s: %s; reading again in %.1f s"
        level = logging.DEBUG if self.started is None else logging.WARNING  # `start` warns itself
        _log.log(level, text, self._config.topic, type(error).__name__, error, wait)
        return wait

    def _open(self, connection: ConsumerConnection) -> None:
        with self._state:  # later joins are read after the next reconnect
            join, self._join = self._join, frozenset()
            self._rejoin = False
        try:
            moved = connection.open(join)
        except Exception:
            with self._state:
                self._join = None if join is None else join | (self._join or frozenset())
            raise
        started = dict(self._cursors)
        self._put(moved)
        self._update_ends(connection)
        if not self._behind:  # otherwise the broker has not yet returned any records
            self._retry.note_contact()
        deadline = time.monotonic() + self._policy.verify
        while connection.unverified and not self._stop.is_set():
            connection.pause(set(self._cursors) - connection.unverified)
            self._poll(connection)
            if connection.unverified and time.monotonic() > deadline:
                text = "topic %s: partitions %s: cannot tell whether the topic is the same"
                _log.warning(text, self._config.topic, sorted(connection.unverified))
                break
        with self._state:
            if self.started is None:
                self.started = started
            self._state.notify_all()

    def _update_ends(self, connection: ConsumerConnection) -> None:
        self.known = connection.partitions()
        self.ends = dict(connection.ends)
        self._behind = connection.behind()

    def _read(self, connection: ConsumerConnection) -> None:
        arrived = time.monotonic()
        while not self._stop.is_set() and not self._rejoin:
            if all(cursor.ended for cursor in self._cursors.values()):
                self._asked_at = None
                self._stop.wait()
                return
            before = time.monotonic()
            self._steer(connection)
            due = before - arrived > self._policy.idle
            has_arrived = self._poll(connection)
            if not self._config.until_end:  # then ends are known, and there are no timeouts
                is_old = before - self._looked_at > self._policy.look
                due |= is_old or (self._is_new and not has_arrived)
            if (due and self._is_well(connection, arrived)) or has_arrived:
                arrived = time.monotonic()
            self._update_ends(connection)
            if self._full:
                self.paused_seconds += time.monotonic() - before

    def _poll(self, connection: ConsumerConnection) -> bool:
        timeout = self._config.poll_timeout
        chunks = connection.poll(min(timeout, _SOON_SECONDS) if self._is_new else timeout)
        if chunks:
            self._put(chunks)
            self._retry.note_contact()
        return bool(chunks)

    def _is_well(self, connection: ConsumerConnection, arrived: float) -> bool:
        """Probe the broker; return False if records since `arrived` have not arrived."""
        asked = self._looked_at = time.monotonic()
        self._is_new, found = False, connection.probe()
        with self._state:
            self._at_end = dict.fromkeys(found, asked)
        starving = connection.starving()
        now = time.monotonic()
        if not starving:
            self._retry.note_contact(asked if now - asked > self._policy.slow else None)
            return True
        if now - arrived > min(self._policy.starved, self._config.max_outage):
            text = f"no record for {now - arrived:.0f} s of partitions {sorted(starving)}"
            way_out = "check its permissions and its brokers"
            raise TimeoutError(f"{text}, although the topic holds more; {way_out}")
        return False

    def _steer(self, connection: ConsumerConnection) -> None:
        """Pause the partitions with a full share of the queue."""
        share = max(1, sum(not cursor.ended for cursor in self._cursors.values()))
        most, largest = self._config.queue_records / share, self._config.queue_bytes / share
        with self._state:
            for partition in self._cursors:
                chunks = [chunk for chunk in self._queue if chunk.partition == partition]
                num_records = sum(len(chunk.records) for chunk in chunks)
                held = max(num_records / most, sum(c.num_bytes for c in chunks) / largest)
                if held >= 1:
                    self._full.add(partition)
                elif held <= 0.5:
                    self._full.discard(partition)
        connection.pause(self._full)

    def _put(self, chunks: list[Chunk]) -> None:
        self._asked_at = None
        if self._stop.is_set():
            return
        with self._state:
            self._queue += chunks
            for chunk in chunks:
                self._at_end.pop(chunk.partition, None)
            self._is_new = True
            self._state.notify_all()
