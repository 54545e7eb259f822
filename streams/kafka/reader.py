"""Reads partitions of a topic, from cursors on, and decodes their records."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Set

from tgflow.streams.kafka.avro import RegistryDown
from tgflow.streams.kafka.codecs import RecordDecoder
from tgflow.streams.kafka.config import KafkaConfig
from tgflow.streams.kafka.consumer import Chunk, Cursor, Poller
from tgflow.streams.kafka.retry import RetryPolicy, RetryState
from tgflow.streams.rows.row_batch import RowBatch

_log = logging.getLogger(__name__)


class PartitionReader:
    """Reads in a thread of this process, and decodes in the thread that takes the rows.

    Args:
        config: The topic.
        cursors: Where to read on in known partitions.
        join: Other partitions to read from their beginning; None: all.
        policy: Waits and timeouts.
        number: Which of `config.decoders` parts of the partitions to read; None: all of them.
    """

    def __init__(
        self,
        config: KafkaConfig,
        cursors: Mapping[int, Cursor],
        join: Set[int] | None,
        policy: RetryPolicy,
        number: int | None = None,
    ) -> None:
        self._config, self._number = config, number
        self._retry = RetryState(f"topic {config.topic}", config.max_outage, policy)
        self._retry.note_contact()  # the outage timer starts here
        self._decoder = RecordDecoder(config)
        self._registry = RetryState(f"registry {config.registry}", config.max_outage, policy)
        self._pending: list[Chunk] = []
        """Chunks that wait for the registry."""
        self._not_before = 0.0
        self._paused_seconds, self._num_hung = 0.0, 0
        self._cursors = dict(cursors)
        self._poller = self._poll_on(join)

    def _poll_on(self, join: Set[int] | None) -> Poller:
        return Poller(self._config, dict(self._cursors), join, self._retry, self._number)

    @property
    def started(self) -> Mapping[int, Cursor]:
        """Start position of each partition, once `wait_started` has returned True."""
        return dict(self._poller.started or {})

    @property
    def known(self) -> Set[int]:
        """Partitions of the topic, as far as known."""
        return self._poller.known

    @property
    def ends(self) -> Mapping[int, int]:
        """End offset of each partition, as last reported by the broker."""
        return self._poller.ends

    @property
    def reason(self) -> str:
        """Why the client has no connection, empty if it has one."""
        return self._poller.reason

    def caught_up(self) -> Set[int]:
        """Return the partitions taken completely, by ends requested in the last seconds."""
        return self._poller.caught_up() - {chunk.partition for chunk in self._pending}

    def wait_started(self, timeout: float) -> bool:
        """Return whether all cursors have been checked and verified within `timeout` seconds."""
        has_started = self._poller.wait_started(timeout)
        if has_started:
            self._cursors = dict(self.started)
        return has_started

    def join(self, partitions: Set[int]) -> None:
        """Read new partitions too, from their beginning."""
        self._poller.join(partitions)
        self._cursors |= dict.fromkeys(partitions, Cursor(0))

    def take(self, wanted: Set[int], timeout: float) -> list[RowBatch]:
        """Return rows of the partitions `wanted`, waiting for the first ones.

        Raises:
            StreamError: As `KafkaSource.poll`.
        """
        self._watch()
        if (left := self._not_before - time.monotonic()) > 0:
            time.sleep(min(left, timeout))
            return []
        if not any(chunk.partition in wanted for chunk in self._pending):
            chunks = self._poller.take(wanted, timeout)
            self._cursors |= {chunk.partition: chunk.cursor for chunk in chunks}
            self._pending += chunks
        decoded = []
        try:
            for chunk in [chunk for chunk in self._pending if chunk.partition in wanted]:
                decoded.append(self._decoder.decode(chunk))
                self._registry.note_contact()
                self._pending.remove(chunk)
        except RegistryDown as error:
            wait = self._registry.note_failure(error)
            self._not_before = time.monotonic() + wait
            text = "registry %s: %s; asking again in %.1f s"
            _log.warning(text, self._config.registry, error, wait)
        return decoded

    def counters(self) -> dict[str, float]:
        """Return counters such as rebuilds and seconds of outage and back-pressure."""
        return {
            "rebuilds": self._retry.rebuilds,
            "corrupt_reads": self._retry.corrupt,
            "hung_polls": self._num_hung,
            "outage_seconds": self._retry.outage_seconds + self._registry.outage_seconds,
            "paused_seconds": self._paused_seconds + self._poller.paused_seconds,
        }

    def close(self) -> None:
        """Stop reading; a thread that does not end within two seconds is abandoned."""
        self._poller.close(2.0)

    def _watch(self) -> None:
        """Abandon a thread that hangs in a call, and continue with a new one."""
        limit = 3 * self._config.poll_timeout + self._retry.policy.hang
        stuck = self._poller.stuck_for()
        if stuck <= limit:
            return
        text = "topic %s: a call of kafka-python has not returned for %.0f s; continuing without it"
        _log.error(text, self._config.topic, stuck)
        self._num_hung += 1
        self._retry.note_failure(TimeoutError(f"a poll took longer than {limit:.0f} s"))
        self._poller.close(0.0)
        self._paused_seconds += self._poller.paused_seconds
        self._poller = self._poll_on(frozenset())
