"""Offsets committed to a consumer group, so that Kafka's tools show the lag; no more."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from tgflow.streams.kafka.config import KafkaConfig, kafka_client

COMMIT_MS = 10_000

_log = logging.getLogger(__name__)


class GroupCommits:
    """Commits the newest offsets in a thread of its own; what fails is counted and forgotten.

    Args:
        config: The topic; its group must be named.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._state = threading.Condition()
        self._waiting: Mapping[int, int] | None = None
        self._closed = False
        self.done = 0
        self.failed = 0
        self._thread = threading.Thread(target=self._run, name="tgflow-kafka-group", daemon=True)
        self._thread.start()

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit `offsets` in the background, unless newer ones come first."""
        with self._state:
            self._waiting = offsets
            self._state.notify_all()

    def close(self, timeout: float) -> None:
        """Stop; a commit that takes longer than `timeout` seconds is abandoned."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        consumer: Any = None
        while (offsets := self._next()) is not None:
            try:
                consumer = consumer or self._consumer()
                self._commit(consumer, offsets)
                self.done += 1
            except Exception as error:
                self.failed += 1
                text = (
                    "topic %s: offsets not committed to group %s (%s: %s); training is not affected"
                )
                name, group = self._config.topic, self._config.group_id
                _log.warning(text, name, group, type(error).__name__, error)
                _close(consumer)
                consumer = None
        _close(consumer)

    def _next(self) -> Mapping[int, int] | None:
        with self._state:
            self._state.wait_for(lambda: self._waiting is not None or self._closed)
            offsets, self._waiting = self._waiting, None
            return offsets

    def _consumer(self) -> Any:
        options = {**self._config.client_options(), "group_id": self._config.group_id}
        return kafka_client().KafkaConsumer(**options)

    def _commit(self, consumer: Any, offsets: Mapping[int, int]) -> None:
        kafka = kafka_client()
        topic = self._config.topic
        committed = {
            kafka.TopicPartition(topic, p): kafka.OffsetAndMetadata(offset, "", -1)
            for p, offset in offsets.items()
        }
        consumer.assign(list(committed))
        consumer.commit(committed, timeout_ms=COMMIT_MS)


def _close(consumer: Any) -> None:
    if consumer is None:
        return
    try:
        consumer.close(autocommit=False, timeout_ms=1000)
    except Exception as error:
        _log.debug("closing the group's consumer: %s", error)
