"""Kafka event source with exactly-once delivery."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tgflow.graph.ids import NodeIds
from tgflow.streams.errors import SourceUnavailable
from tgflow.streams.files.decoder import SAMPLES
from tgflow.streams.kafka.avro import RegistryDown
from tgflow.streams.kafka.codecs import RecordDecoder
from tgflow.streams.kafka.config import KafkaConfig, kafka_client
from tgflow.streams.kafka.consumer import Cursor, Poller
from tgflow.streams.kafka.publish import Topic
from tgflow.streams.kafka.readers import PartitionReader, ReaderProcesses, Status
from tgflow.streams.kafka.retry import ConnectionNotices, RetryPolicy, RetryState
from tgflow.streams.rows.row_batch import Position, RowBatch, warn_of_first_time
from tgflow.streams.rows.schema import IdKind
from tgflow.streams.rows.validate import first_id_kind
from tgflow.streams.transports import Transport

COMMIT_MS = 10_000
FIRST_SECONDS = 5.0
STOP_CHECK_SECONDS = 0.2
"""Interval in seconds at which waits check `stop`."""

_log = logging.getLogger(__name__)


class KafkaSource:
    """The events of a topic by partition; a `PartitionedSource`.

    Positions (partition and offset) are kept by tgflow, not by a consumer group.

    Args:
        config: The topic, its schema and read settings.
        retry: Waits and timeouts; None for defaults that suit a remote broker.

    Raises:
        ImportError: If kafka-python is not installed, or fastavro for Avro.
        ValueError: If an option refers to a variable that is not set, or an empty file; if the
            schema file is none.
        OSError: If it refers to a file that cannot be read.
    """

    def __init__(self, config: KafkaConfig, *, retry: RetryPolicy | None = None) -> None:
        config.client_options()  # what is missing is found before a broker is asked
        RecordDecoder(config)
        self.stop: Callable[[], bool] = lambda: False
        """Called during waits; once it returns True, `start` returns without having started, and
        `poll` returns nothing."""
        schema = config.schema
        self.name = f"topic {config.topic}"
        self.unit = schema.time.tick
        self.x_dim = sum(schema.widths)
        self.features = dict(zip(schema.columns.features, schema.widths, strict=True))
        self.id_kind = schema.ids
        self.ids = NodeIds(config.bipartite)
        self.num_events: int | None = None
        self._config = config
        self._policy = retry or RetryPolicy()
        self._committing = threading.Lock()
        self._num_commits = self._num_commit_failures = 0
        self._reader: PartitionReader | ReaderProcesses | None = None
        self._past: Counter[str] = Counter()
        """Counters of readers before the present one."""
        self._cursors: dict[int, Cursor] = {}
        self._starts: dict[int, int] = {}
        self._unreported: set[int] = set()
        self._has_warned = self._has_checked_time = False

    def start(self, positions: Mapping[int, Position]) -> None:
        """Start or resume at `positions`; a partition without one is read from its beginning.

        Waits for the broker up to `connect_timeout` seconds, or until `stop` returns True.

        With `until_end` the end offsets are fixed at the first start and stored in the positions,
        so that a resumed run stops at the same place: a partition that is not in `positions` is
        newer, and excluded. Once all ends have been reached, the next start fixes new ones, and
        includes new partitions.
        """
        given = {p: Cursor.from_position(position) for p, position in positions.items()}
        self._has_checked_time = bool(given)
        self._halt()
        fixed = self._config.until_end
        if all(cursor.ended for cursor in given.values()):
            given = {p: replace(cursor, end=None) for p, cursor in given.items()}
            fixed = False
        join: Set[int] | None = frozenset() if fixed else None
        kind = PartitionReader if self._config.decoders == 1 else ReaderProcesses
        self._reader = reader = kind(self._config, given, join, self._policy)
        why, wait = lambda: reader.status().reason, reader.wait_started
        if not _await_start(wait, why, self._config, self.stop):
            return
        self._cursors = dict(reader.status().started or {})
        self._starts = {p: cursor.offset for p, cursor in self._cursors.items()}
        self._unreported = {p for p, cursor in self._cursors.items() if given.get(p) != cursor}

    def partitions(self) -> Sequence[int]:
        return sorted(self._cursors)

    def look_for_partitions(self) -> Sequence[int]:
        """Return the partitions added since; they are read from their beginning from now on.

        The broker's metadata may be half a minute old (`metadata_max_age_ms`). With `until_end`
        there are none, as the end was fixed at the start; this is logged once.
        """
        reader = self._live()
        new = frozenset(reader.status().known) - frozenset(self._cursors)
        if new and self._config.until_end:
            if not self._has_warned:
                text = "%s: partitions %s are new, and are skipped: the end was fixed at the start"
                _log.warning(text, self.name, sorted(new))
            self._has_warned, new = True, frozenset()
        if new:
            reader.join(new)
        self._cursors |= dict.fromkeys(new, Cursor(0))
        self._starts |= dict.fromkeys(new, 0)
        return sorted(new)

    def poll(self, wanted: Set[int], timeout: float) -> list[RowBatch]:
        """Return records of the partitions `wanted`, waiting up to `timeout` seconds.

        Raises a `StreamError` if the broker is unreachable for `max_outage` seconds, the same bytes
        arrive damaged on every retry, or the topic does not continue at the position.
        """
        deadline = time.monotonic() + timeout
        arrived: list[RowBatch] = []
        while not arrived and not self.stop():
            left = max(0.0, deadline - time.monotonic())
            arrived = self._live().take(wanted, min(STOP_CHECK_SECONDS, left))
            if left <= STOP_CHECK_SECONDS:
                break
        if not self._has_checked_time:
            self._has_checked_time = warn_of_first_time(_log, arrived, self.unit)
        for rows in arrived:
            self._cursors[rows.partition] = Cursor.from_position(rows.position)
            self._unreported.discard(rows.partition)
        return arrived

    def ended(self) -> Set[int]:
        """Return the partitions that were read to the end, with `until_end`.

        An empty partition must be polled once before its end is known.
        """
        return {p for p, cursor in self._cursors.items() if cursor.ended} - self._unreported

    def caught_up(self) -> Set[int]:
        return self._status.caught_up

    def lag(self) -> Mapping[int, int]:
        ends, cursors = self._status.ends, dict(self._cursors)
        return {p: max(0, ends[p] - cursor.offset) for p, cursor in cursors.items() if p in ends}

    def progress(self) -> float:
        """Return the share polled so far, with `until_end`; else 0."""
        total = done = 0
        for partition, cursor in self._cursors.items():
            if cursor.end is not None:
                begin = min(self._starts.get(partition, 0), cursor.end)
                total += cursor.end - begin
                done += min(cursor.offset, cursor.end) - begin
        return done / total if total else float(bool(self._cursors) and self._config.until_end)

    def counters(self) -> Mapping[str, float]:
        found = self._past.copy()
        found.update(self._status.counters)
        found["group_commits"] = self._num_commits
        found["group_commit_failures"] = self._num_commit_failures
        return found

    def committed(self, positions: Mapping[int, Position]) -> None:
        """Commit offsets to the consumer group, if any, in the background; never raises.

        Commits only expose the lag to Kafka's tools: failures are counted, and a commit during
        another one is skipped.
        """
        if self._config.group_id and self._committing.acquire(blocking=False):
            offsets = {p: position["offset"] for p, position in positions.items()}
            threading.Thread(target=self._commit, args=(offsets,), daemon=True).start()

    def close(self) -> None:
        """Close the consumer within about three seconds."""
        self._halt()
        if self._committing.acquire(timeout=1.0):
            self._committing.release()

    def _commit(self, offsets: Mapping[int, Any]) -> None:
        kafka, topic, group = kafka_client(), self._config.topic, self._config.group_id
        consumer = None
        try:
            consumer = kafka.KafkaConsumer(**self._config.client_options() | {"group_id": group})
            committed = {
                kafka.TopicPartition(topic, p): kafka.OffsetAndMetadata(offset, "", -1)
                for p, offset in offsets.items()
            }
            consumer.assign(list(committed))
            consumer.commit(committed, timeout_ms=COMMIT_MS)
            self._num_commits += 1
        except Exception as error:
            self._num_commit_failures += 1
            text = "topic %s: offsets not committed to group %s (%s: %s); training is not affected"
            _log.warning(text, topic, group, type(error).__name__, error)
        finally:
            if consumer is not None:
                with suppress(Exception):
                    consumer.close(autocommit=False, timeout_ms=1000)
            self._committing.release()

    def _halt(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._past.update(self._reader.status().counters)
            self._reader = None

    @property
    def _status(self) -> Status:
        return self._reader.status() if self._reader else Status()

    def _live(self) -> PartitionReader | ReaderProcesses:
        if self._reader is None:
            raise RuntimeError("the source has not been started; call start(positions)")
        return self._reader


def _await_start(
    wait_started: Callable[[float], bool],
    reason: Callable[[], str],
    config: KafkaConfig,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait for the broker up to `connect_timeout` seconds; return False if `stop` returned True."""
    notices = ConnectionNotices(config.topic, config.servers, config.connect_timeout)
    while not wait_started(STOP_CHECK_SECONDS):
        if stop():
            return False
        notices.check()
        if not notices.left:
            text = notices.failure(reason())
            raise SourceUnavailable(f"topic {config.topic}", "unavailable", text)
    return True


def first_id_kind_of(config: KafkaConfig) -> tuple[IdKind, str]:
    """Return the kind of ids in the first records of each partition, and why.

    Waits for the broker up to `connect_timeout` seconds. Ids are integers if there is no record,
    or none arrives in `FIRST_SECONDS` after the broker has answered.

    Raises:
        StreamError: If the broker does not answer, refuses the client or has no such topic, the
            records hold other values than ids, or a registry does not answer.
    """
    config.client_options()  # what is missing is found before a broker is asked
    decoder = RecordDecoder(replace(config, id_kind="string"))
    retry = RetryState(f"topic {config.topic}", config.max_outage, RetryPolicy())
    found: dict[int, list[bytes]] = {}
    poller = Poller(replace(config, until_end=True), {}, None, retry)
    try:
        _await_start(poller.wait_started, lambda: poller.reason, config)
        waiting = {p for p, cursor in (poller.started or {}).items() if not cursor.ended}
        deadline = time.monotonic() + FIRST_SECONDS
        while waiting and time.monotonic() < deadline:
            for chunk in poller.take(waiting, STOP_CHECK_SECONDS):
                there = [record.value for record in chunk.records if record.value is not None]
                found.setdefault(chunk.partition, []).extend(there)
                if there or chunk.cursor.ended:
                    waiting.discard(chunk.partition)
    finally:
        poller.close(2.0)
    values = [value for p in sorted(found) for value in found[p][:SAMPLES]]
    if not values:
        none = f"no record arrived in {FIRST_SECONDS:g} s" if waiting else "there is no record yet"
        return "int", f", as {none}; --id-kind string takes text"
    try:
        ids = decoder.first_ids(values)
    except RegistryDown as error:
        text = f"{error}; check that it runs; with id_kind=... the run waits for it"
        raise SourceUnavailable(f"registry {config.registry}", "unavailable", text) from None
    if all(value in (None, "") for _, value in ids):
        names = " or ".join(repr(name) for name in (config.src, config.dst))
        return "int", f", as the first records have no {names}; --src and --dst name other fields"
    return first_id_kind(f"topic {config.topic}", ids)


def _topic(url: str, settings: KafkaConfig) -> Topic:
    return Topic(url, settings.options, connect_timeout=settings.connect_timeout)


TRANSPORT = Transport(KafkaConfig, KafkaSource, topic=_topic, id_kind=first_id_kind_of)
