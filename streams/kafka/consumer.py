"""One consumer from its creation to its first failure: checks at the start, then records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from tgflow.streams.errors import SourceExpired, SourceMismatch, SourceTruncated, StreamError
from tgflow.streams.kafka.chunk import Chunk, new_records
from tgflow.streams.kafka.config import FIXED_OPTIONS, KafkaConfig, kafka_client
from tgflow.streams.kafka.cursor import Anchor, Cursor, Record

_log = logging.getLogger(__name__)


class NoTopicError(StreamError):
    """The broker has no such topic."""


class ConsumerConnection:
    """A consumer that reads some partitions, each from its cursor on.

    Args:
        config: The topic.
        cursors: Where each partition continues; `open` adds new partitions, `poll` moves them.
        answer_ms: How long a request other than a fetch may take, in milliseconds.
        heartbeat: Called before each request to the broker.
    """

    def __init__(
        self,
        config: KafkaConfig,
        cursors: dict[int, Cursor],
        answer_ms: int,
        heartbeat: Callable[[], None],
    ) -> None:
        self._config, self._cursors = config, cursors
        self._answer_ms, self._heartbeat = answer_ms, heartbeat
        self._name = f"topic {config.topic}"
        self._kafka = kafka_client()
        self._consumer: Any = None
        self._reading: set[int] = set()
        self._paused: set[int] = set()
        self._in_part: int | None = None
        self.unverified: set[int] = set()
        """Partitions whose anchor has not arrived yet."""
        self.ends: dict[int, int] = {}
        """Where each partition ended when the broker last reported it."""
        self._lost: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> ConsumerConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def open(self, join: Collection[int] | None) -> None:
        """Connect, check every cursor against what the broker holds, and seek there.

        Args:
            join: New partitions to read from their beginning; None for all there are.

        Raises:
            SourceExpired: If records that come next are no longer kept, and that is an error.
            SourceTruncated: If a partition ends before its cursor.
            NoTopicError: If there is no such topic.
            Exception: Whatever kafka-python raises if it cannot be reached.
        """
        self._heartbeat()
        self._consumer = self._kafka.KafkaConsumer(**self._config.client_options())
        self._heartbeat()
        self._consumer.bootstrap(timeout_ms=self._answer_ms)  # later requests may wait for ever
        there = self.partitions()
        if not there:
            text = "there is no such topic on this broker; create it, or correct the URL"
            raise NoTopicError(self._name, "no_topic", text)
        new = set(there if join is None else join) - set(self._cursors)
        self._check_present(there)
        topics = [self._tp(p) for p in {*self._cursors, *new}]
        self._heartbeat()
        begins = self._consumer.beginning_offsets(topics, timeout_ms=self._answer_ms)
        self._heartbeat()
        ends = self._consumer.end_offsets(topics, timeout_ms=self._answer_ms)
        for tp in topics:
            self._resolve(tp.partition, begins[tp], ends[tp])
        self._reading = {p for p, cursor in self._cursors.items() if not cursor.ended}
        self._consumer.assign([self._tp(p) for p in self._reading])
        for partition in self._reading:
            self._consumer.seek(self._tp(partition), self._cursors[partition].start)
        self.unverified &= self._reading

    def partitions(self) -> frozenset[int]:
        """Return the partitions of the topic, by the latest metadata."""
        self._heartbeat()
        return frozenset(self._consumer.partitions_for_topic(self._config.topic) or ())

    def first_chunk(self, partition: int) -> Chunk:
        """Return where a partition continues, without records, and the gap that expired before."""
        cursor = self._cursors[partition]
        if (gap := self._lost.get(partition)) is None:
            return Chunk(partition, [], cursor, {})
        return Chunk(partition, [], cursor, {"gap": gap[1] - gap[0]}, [gap])

    def behind(self) -> dict[int, int]:
        """Return the partitions that hold more to read, and the offset where each continues."""
        cursors = {p: self._cursors[p] for p in self._reading}
        return {p: cursor.offset for p, cursor in cursors.items() if cursor.offset < self._until(p)}

    def starving(self) -> set[int]:
        """Return the partitions that are not paused, and hold records that have not arrived."""
        behind = self.behind().keys() - self._paused
        return {p for p in behind if self._position(p) < self._until(p)}

    def pause(self, partitions: Collection[int]) -> None:
        """Read all partitions but these, until the next call.

        One of whose last fetch a part was returned is paused only if all are: kafka-python sets the
        other part aside, and would not read that partition again once another one was.
        """
        assigned = {tp.partition for tp in self._consumer.assignment()}
        wanted = assigned & set(partitions)
        if wanted != assigned:
            wanted.discard(self._in_part)
        self._consumer.pause(*(self._tp(p) for p in wanted - self._paused))
        self._consumer.resume(*(self._tp(p) for p in self._paused - wanted))
        self._paused = wanted

    def poll(self, timeout: float) -> list[Chunk]:
        """Return what has arrived, waiting up to `timeout` seconds.

        Raises:
            SourceMismatch: If the first record of a partition is not the one read before.
            Exception: Whatever kafka-python raises; this connection is then unusable.
        """
        self._heartbeat()
        found = self._consumer.poll(timeout_ms=int(timeout * 1000))
        self._note_part(found)
        chunks = [self._chunk(tp.partition, records) for tp, records in found.items()]
        for tp in self._consumer.assignment():
            high = self._consumer.highwater(tp)
            if high is not None:
                self.ends[tp.partition] = high
        chunks += self._ended_without_record({chunk.partition for chunk in chunks})
        return [chunk for chunk in chunks if chunk.records or chunk.counts or chunk.cursor.ended]

    def _note_part(self, found: dict[Any, list[Any]]) -> None:
        """Keep which partition may have come in part: the last one, if no more records fit."""
        num = sum(map(len, found.values()))
        if num == FIXED_OPTIONS["max_poll_records"]:
            self._in_part = next(reversed(found)).partition
        elif num or self._in_part not in self._paused:
            self._in_part = None

    def probe(self) -> None:
        """Ask the broker where the partitions end, which also shows whether it is reachable."""
        self._heartbeat()
        topics = [self._tp(p) for p in self._cursors]
        ends = self._consumer.end_offsets(topics, timeout_ms=self._answer_ms)
        self.ends |= {tp.partition: end for tp, end in ends.items()}

    def close(self) -> None:
        """Close the consumer, waiting no more than a second."""
        if self._consumer is not None:
            self._consumer.close(autocommit=False, timeout_ms=1000)

    def _tp(self, partition: int) -> Any:
        return self._kafka.TopicPartition(self._config.topic, partition)

    def _until(self, partition: int) -> int:
        end, until = self.ends.get(partition, 0), self._cursors[partition].end
        return end if until is None else min(end, until)

    def _position(self, partition: int) -> int:
        """Return the offset that is fetched next: past markers, such as a transaction's end."""
        return int(self._consumer.position(self._tp(partition), timeout_ms=self._answer_ms))

    def _check_present(self, there: Collection[int]) -> None:
        gone = sorted(set(self._cursors) - set(there))
        if gone:
            text = f"partition {gone[0]} is gone, the topic has {len(there)}; {_RECREATED}"
            raise SourceTruncated(self._name, "truncated", text)

    def _resolve(self, partition: int, begin: int, end: int) -> None:
        """Decide where to continue in a partition that holds the offsets `[begin, end)`."""
        cursor = self._cursors.get(partition, Cursor(begin))
        self.ends[partition] = end
        if cursor.offset > end:
            text = (
                f"partition {partition} ends at offset {end}, before {cursor.offset}, which comes"
            )
            raise SourceTruncated(self._name, "truncated", f"{text} next; {_RECREATED}")
        if cursor.offset < begin:
            cursor = self._skip_expired(partition, cursor, begin)
        elif cursor.anchor is not None and cursor.anchor.offset < begin:
            self._warn_unproven(partition, f"the record at {cursor.anchor.offset} has expired")
            cursor = replace(cursor, anchor=None)
        elif cursor.anchor is not None:
            self.unverified.add(partition)
        until = (end if cursor.end is None else cursor.end) if self._config.until_end else None
        self._cursors[partition] = replace(cursor, end=until)

    def _skip_expired(self, partition: int, cursor: Cursor, begin: int) -> Cursor:
        lost = f"offsets {cursor.offset} to {begin - 1} of partition {partition} are no longer kept"
        if self._config.on_expired == "fail":
            text = f"{lost}; pass on_expired='skip' to continue without them, or start a new run"
            raise SourceExpired(self._name, "expired", text)
        _log.warning("%s: %s; continuing without them", self._name, lost)
        self._lost[partition] = cursor.offset, begin
        return Cursor(begin, end=cursor.end)

    def _chunk(self, partition: int, polled: Sequence[Record]) -> Chunk:
        """Return the records that follow the partition's cursor, and move it past them."""
        cursor = self._cursors[partition]
        verifying = partition in self.unverified
        records = new_records(polled, cursor.start if verifying else cursor.offset)
        repeated = len(polled) - len(records)
        if verifying and records:
            records = self._verify_anchor(partition, cursor, records)
        if cursor.end is not None and records and records[-1].offset >= cursor.end:
            until = cursor.end
            records = [record for record in records if record.offset < until]
            cursor = replace(cursor, offset=until)
        if records:
            behind = cursor.after(Anchor.from_record(records[-1]))
            cursor = replace(behind, offset=max(behind.offset, cursor.offset))
        self._cursors[partition] = cursor
        return Chunk(partition, records, cursor, {"repeated": repeated} if repeated else {})

    def _verify_anchor(self, partition: int, cursor: Cursor, records: list[Record]) -> list[Record]:
        """Return the records without the anchor, once it has been found unchanged."""
        anchor = cursor.anchor
        assert anchor is not None  # else it would not be unverified
        self.unverified.discard(partition)
        if records[0].offset > anchor.offset:
            self._handle_missing_anchor(partition, cursor)
            return records
        if Anchor.from_record(records[0]) != anchor:
            text = (
                f"offset {anchor.offset} of partition {partition} is not the record that was read"
            )
            raise SourceMismatch(self._name, "mismatch", f"{text}; {_RECREATED}")
        return records if cursor.row else records[1:]

    def _handle_missing_anchor(self, partition: int, cursor: Cursor) -> None:
        if cursor.row:
            text = (
                f"offset {cursor.offset} of partition {partition}, of which {cursor.row} rows were"
            )
            raise SourceExpired(self._name, "expired", f"{text} read, is gone; start a new run")
        self._warn_unproven(partition, f"the record at {cursor.offset - 1} is gone")

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


_RECREATED = "the topic was recreated, or this is another broker: start a new run to read it"
