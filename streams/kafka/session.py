"""One consumer from its making to its first failure: checks at the start, then records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from tgflow.streams.errors import SourceExpired, SourceMismatch, SourceTruncated, StreamError
from tgflow.streams.kafka.batches import whole_batches
from tgflow.streams.kafka.config import KafkaConfig, kafka_client
from tgflow.streams.kafka.fetched import NO_RECORDS, Records, taken_apart
from tgflow.streams.kafka.positions import Place

ANSWER_MS = 10_000
"""How long a question to the broker may take."""

_log = logging.getLogger(__name__)


class NoTopicError(StreamError):
    """The broker has no such topic."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one partition that follow each other.

    Args:
        partition: The partition.
        records: Its records, increasing in offset; may be none.
        place: Where the partition goes on after them.
        num_bytes: The bytes of their values.
        counts: What else was met, such as {"repeated": 2} or {"gap": 40}.
        gaps: The offsets `[begin, end)` that had expired before they could be read.
    """

    partition: int
    records: Records
    place: Place
    num_bytes: int
    counts: Mapping[str, int]
    gaps: Sequence[tuple[int, int]] = ()


class Session:
    """A consumer that reads some partitions, each from its place on.

    Args:
        config: The topic.
        places: Where each partition goes on; `open` adds those that are new, and reading moves it.
        beat: Called before each question to the broker.
    """

    def __init__(
        self, config: KafkaConfig, places: dict[int, Place], beat: Callable[[], None]
    ) -> None:
        self._config, self._places, self._beat = config, places, beat
        self._name = f"topic {config.topic}"
        self._kafka = kafka_client()
        self._consumer: Any = None
        self._reading: set[int] = set()
        self._paused: set[int] = set()
        self.unverified: set[int] = set()
        """Partitions whose anchor has not come yet."""
        self.ends: dict[int, int] = {}
        """Where each partition ended when the broker last said so."""
        self._lost: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def open(self, join: Collection[int] | None) -> None:
        """Connect, check every place against what the broker holds, and go there.

        Args:
            join: New partitions to read from their beginning; None for all there are.

        Raises:
            SourceExpired: If records that come next are no longer kept, and that is an error.
            SourceTruncated: If a partition ends before its place.
            NoTopicError: If there is no such topic.
            Exception: Whatever kafka-python raises if it cannot be reached.
        """
        self._beat()
        self._consumer = self._kafka.KafkaConsumer(**self._config.client_options())
        whole_batches(self._consumer)
        self._beat()
        self._consumer.bootstrap(timeout_ms=ANSWER_MS)  # later questions may wait for ever
        there = self.partitions()
        if not there:
            text = "there is no such topic on this broker; create it, or mend the URL"
            raise NoTopicError(self._name, "no_topic", text)
        new = set(there if join is None else join) - set(self._places)
        self._check_present(there)
        topics = [self._tp(p) for p in {*self._places, *new}]
        self._beat()
        begins = self._consumer.beginning_offsets(topics, timeout_ms=ANSWER_MS)
        self._beat()
        ends = self._consumer.end_offsets(topics, timeout_ms=ANSWER_MS)
        for tp in topics:
            self._settle(tp.partition, begins[tp], ends[tp])
        self._reading = {p for p, place in self._places.items() if not place.ended}
        self._consumer.assign([self._tp(p) for p in self._reading])
        for partition in self._reading:
            self._consumer.seek(self._tp(partition), self._places[partition].start)
        self.unverified &= self._reading

    def partitions(self) -> frozenset[int]:
        """Return the partitions of the topic, as last heard."""
        self._beat()
        return frozenset(self._consumer.partitions_for_topic(self._config.topic) or ())

    def begun(self, partition: int) -> Chunk:
        """Return where a partition goes on, and what had expired before."""
        place = self._places[partition]
        if (gap := self._lost.get(partition)) is None:
            return Chunk(partition, NO_RECORDS, place, 0, {})
        return Chunk(partition, NO_RECORDS, place, 0, {"gap": gap[1] - gap[0]}, [gap])

    def behind(self) -> dict[int, int]:
        """Return the partitions that hold more to read, and the offset where each goes on."""
        places = {p: self._places[p] for p in self._reading}
        return {p: place.offset for p, place in places.items() if place.offset < self._until(p)}

    def starving(self) -> set[int]:
        """Return the partitions that are not paused, and hold records that have not come."""
        behind = self.behind().keys() - self._paused
        return {p for p in behind if self._position(p) < self._until(p)}

    def pause(self, partitions: Collection[int]) -> None:
        """Read all but these partitions until told otherwise."""
        assigned = {tp.partition for tp in self._consumer.assignment()}
        wanted = assigned & set(partitions)
        self._consumer.pause(*(self._tp(p) for p in wanted - self._paused))
        self._consumer.resume(*(self._tp(p) for p in self._paused - wanted))
        self._paused = wanted

    def poll(self, timeout: float) -> list[Chunk]:
        """Return what has come, waiting up to `timeout` seconds.

        Raises:
            SourceMismatch: If the first record of a partition is not the one read before.
            Exception: Whatever kafka-python raises; this session is then of no more use.
        """
        self._beat()
        found = self._consumer.poll(timeout_ms=int(timeout * 1000))
        chunks = [self._chunk(tp.partition, records) for tp, records in found.items()]
        for tp in self._consumer.assignment():
            high = self._consumer.highwater(tp)
            if high is not None:
                self.ends[tp.partition] = high
        chunks += self._ended_without_record({chunk.partition for chunk in chunks})
        return [
            chunk for chunk in chunks if len(chunk.records) or chunk.counts or chunk.place.ended
        ]

    def probe(self) -> None:
        """Ask the broker where the partitions end, so as to hear whether it is there."""
        self._beat()
        topics = [self._tp(p) for p in self._places]
        ends = self._consumer.end_offsets(topics, timeout_ms=ANSWER_MS)
        self.ends |= {tp.partition: end for tp, end in ends.items()}

    def close(self) -> None:
        """Give the consumer back, waiting no more than a second."""
        if self._consumer is not None:
            self._consumer.close(autocommit=False, timeout_ms=1000)

    def _tp(self, partition: int) -> Any:
        return self._kafka.TopicPartition(self._config.topic, partition)

    def _until(self, partition: int) -> int:
        end, until = self.ends.get(partition, 0), self._places[partition].end
        return end if until is None else min(end, until)

    def _position(self, partition: int) -> int:
        """Return what kafka-python reads next: behind what is no record, as a transaction's end."""
        return int(self._consumer.position(self._tp(partition), timeout_ms=ANSWER_MS))

    def _check_present(self, there: Collection[int]) -> None:
        gone = sorted(set(self._places) - set(there))
        if gone:
            text = f"partition {gone[0]} is gone, the topic has {len(there)}; {_RECREATED}"
            raise SourceTruncated(self._name, "truncated", text)

    def _settle(self, partition: int, begin: int, end: int) -> None:
        """Decide where to go on in a partition that holds the offsets `[begin, end)`."""
        place = self._places.get(partition, Place(begin))
        self.ends[partition] = end
        if place.offset > end:
            text = f"partition {partition} ends at offset {end}, before {place.offset}, which comes"
            raise SourceTruncated(self._name, "truncated", f"{text} next; {_RECREATED}")
        if place.offset < begin:
            place = self._expired(partition, place, begin)
        elif place.anchor is not None and place.anchor.offset < begin:
            self._warn_unproven(partition, f"the record at {place.anchor.offset} has expired")
            place = replace(place, anchor=None)
        elif place.anchor is not None:
            self.unverified.add(partition)
        until = (end if place.end is None else place.end) if self._config.until_end else None
        self._places[partition] = replace(place, end=until)

    def _expired(self, partition: int, place: Place, begin: int) -> Place:
        lost = f"offsets {place.offset} to {begin - 1} of partition {partition} are no longer kept"
        if self._config.on_expired == "fail":
            text = f"{lost}; pass on_expired='skip' to go on without them, or start a new run"
            raise SourceExpired(self._name, "expired", text)
        _log.warning("%s: %s; going on without them", self._name, lost)
        self._lost[partition] = place.offset, begin
        return Place(begin, end=place.end)

    def _chunk(self, partition: int, polled: list[Any]) -> Chunk:
        """Return the records that follow the partition's place, which moves behind them."""
        place = self._places[partition]
        verifying = partition in self.unverified
        records, repeated = taken_apart(polled, place.start if verifying else place.offset)
        if verifying and len(records):
            records = self._verified(partition, place, records)
        if place.end is not None and len(records) and records.offsets[-1] >= place.end:
            records = records.where(records.offsets < place.end)
            place = replace(place, offset=place.end)
        if len(records):
            behind = place.after(records.anchor(-1))
            place = replace(behind, offset=max(behind.offset, place.offset))
        self._places[partition] = place
        counts = {"repeated": repeated} if repeated else {}
        return Chunk(partition, records, place, records.num_bytes, counts)

    def _verified(self, partition: int, place: Place, records: Records) -> Records:
        """Return the records without the anchor, once it is what it was."""
        anchor = place.anchor
        assert anchor is not None  # else it would not be unverified
        self.unverified.discard(partition)
        if records.offsets[0] > anchor.offset:
            self._anchor_is_gone(partition, place)
            return records
        if records.anchor(0) != anchor:
            text = (
                f"offset {anchor.offset} of partition {partition} is not the record that was read"
            )
            raise SourceMismatch(self._name, "mismatch", f"{text}; {_RECREATED}")
        return records if place.row else records[1:]

    def _anchor_is_gone(self, partition: int, place: Place) -> None:
        if place.row:
            text = f"offset {place.offset} of partition {partition}, of which {place.row} rows were"
            raise SourceExpired(self._name, "expired", f"{text} read, is gone; start a new run")
        self._warn_unproven(partition, f"the record at {place.offset - 1} is gone")

    def _warn_unproven(self, partition: int, why: str) -> None:
        text = "%s, partition %d: %s; cannot tell whether the topic is the one that was read"
        _log.warning(text, self._name, partition, why)

    def _ended_without_record(self, found: Collection[int]) -> Iterable[Chunk]:
        """Yield the partitions that end with what is no record, as the end of a transaction."""
        for tp in self._consumer.assignment():
            place = self._places[tp.partition]
            if place.end is None or place.ended or tp.partition in found:
                continue
            if self._position(tp.partition) >= place.end:
                self._places[tp.partition] = replace(place, offset=place.end)
                yield Chunk(tp.partition, NO_RECORDS, self._places[tp.partition], 0, {})


_RECREATED = "the topic was made anew, or this is another broker: start a new run to read it"
