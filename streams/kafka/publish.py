"""Write records to a topic."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tgflow.base.secret import check_options
from tgflow.streams.errors import SourceRefused
from tgflow.streams.kafka.config import CLIENT_DEFAULTS, client_values, kafka_client, parse_url
from tgflow.streams.kafka.retry import (
    ClientWatch,
    ConnectionNotices,
    checking_options,
    is_final,
    refused,
    said,
)

FLUSH_SECONDS = 60.0
TOPIC_SECONDS = 5.0
"""Time for a broker to create a topic after it has answered."""
UNSENT_BYTES = 32 << 20
"""Maximum bytes waiting to be sent."""

_PRODUCER_DEFAULTS: Mapping[str, Any] = {
    **CLIENT_DEFAULTS,
    "acks": "all",
    "batch_size": 256 << 10,
    "linger_ms": 10,
}


class PublishError(OSError):
    """The broker rejected records; the message has the reason, and whether the topic exists."""


class NoBrokerError(PublishError):
    """No broker answered in time."""


class Topic:
    """A topic to write to; records arrive once and in order, as far as the broker can guarantee.

    Args:
        timeout: Seconds to wait for an answer to a request.
        connect_timeout: Seconds to wait for a broker at first.

    Raises:
        NoBrokerError: If no broker answers within `connect_timeout` seconds.
        PublishError: If there is no such topic, and the broker creates none.
        SourceRefused: If the broker refuses the client, or a library is missing.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        timeout: float = FLUSH_SECONDS,
        connect_timeout: float = FLUSH_SECONDS,
    ) -> None:
        check_options(options or {})
        kafka = kafka_client()
        servers, self.name = parse_url(url)
        known, most_ms = kafka.KafkaProducer.DEFAULT_CONFIG, int(connect_timeout * 1000)
        own = {k: v for k, v in (options or {}).items() if k in known}
        self._watch = watch = ClientWatch()
        blocked = {"bootstrap_timeout_ms": most_ms, "max_block_ms": most_ms, "kafka_client": watch}
        given = client_values(own, known)
        settings = {**_PRODUCER_DEFAULTS, **blocked, **given, "bootstrap_servers": servers}
        self._timeout = timeout
        self._failure: Exception | None = None
        self._unsent = 0
        self._producer: Any = None
        notices = ConnectionNotices(self.name, servers, connect_timeout)
        try:
            with notices.in_background():
                with checking_options():
                    self._producer = kafka.KafkaProducer(**settings)
                patience = self._producer.config["max_block_ms"]
                self._producer.config["max_block_ms"] = 500  # to look at `watch` in between
                deadline = time.monotonic() + notices.left
                is_there = False
                while not is_there:
                    try:
                        is_there = bool(self._producer.partitions_for(self.name))
                    except kafka.errors.KafkaTimeoutError:
                        if watch.has_answered:
                            deadline = min(deadline, time.monotonic() + TOPIC_SECONDS)
                        if time.monotonic() > deadline or is_final(watch.failure):
                            raise
                self._producer.config["max_block_ms"] = patience
        except (kafka.errors.KafkaError, OSError) as error:
            self.close()
            cause = watch.failure or error
            if is_final(cause):
                raise refused(f"topic {self.name}", cause) from error
            if not watch.has_answered:
                raise NoBrokerError(notices.failure(said(cause))) from error
            raise PublishError(
                f"there is no topic {self.name!r} at {', '.join(servers)}, and the broker does not "
                f"create it ({said(error)}); create it, or correct the URL"
            ) from error

    def send(self, value: bytes, key: bytes) -> None:
        """Queue a record for sending; blocks while the queue is full."""
        self._check()
        if self._unsent + len(value) > UNSENT_BYTES:
            self.flush()
        self._unsent += len(value)
        try:
            future = self._producer.send(self.name, value=value, key=key)
        except Exception as error:
            raise self._refused(error) from error
        future.add_errback(self._fail)

    def flush(self) -> None:
        """Block until the broker has acknowledged all records."""
        kafka, began, is_done = kafka_client(), time.monotonic(), False
        while not is_done:
            try:
                self._producer.flush(timeout=min(1.0, self._timeout))  # by default without an end
                is_done = True
            except kafka.errors.KafkaTimeoutError as error:
                rejection = self._watch.rejection
                is_gone = isinstance(rejection, kafka.errors.UnknownTopicOrPartitionError)
                limit = min(self._timeout, TOPIC_SECONDS) if is_gone else self._timeout
                if time.monotonic() - began >= limit:
                    raise self._refused(rejection or error) from error
            except Exception as error:
                raise self._refused(error) from error
        self._unsent = 0
        self._check()

    def close(self) -> None:
        """Close the connections within a few seconds; call `flush` first."""
        if self._producer is not None:
            self._producer.close(timeout=5)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._refused(self._failure) from self._failure

    def _refused(self, error: Exception) -> PublishError | SourceRefused:
        if is_final(error):
            return refused(f"topic {self.name}", error)
        return PublishError(
            f"topic {self.name}: the broker did not take all records ({said(error)})"
        )
