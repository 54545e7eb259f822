"""Publish events to a topic in the formats that the codecs read."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from tgflow.base.secret import check_options
from tgflow.graph.events import EventBatch
from tgflow.graph.ids import NodeIds
from tgflow.streams.errors import SourceRefused
from tgflow.streams.kafka.config import (
    CLIENT_DEFAULTS,
    CodecName,
    client_values,
    kafka_client,
    parse_url,
)
from tgflow.streams.kafka.retry import (
    ClientWatch,
    ConnectionNotices,
    checking_options,
    is_final,
    refused,
    said,
)
from tgflow.streams.rows.schema import OPTIONAL

PartitionBy = Literal["src", "round_robin"]

FLUSH_SECONDS = 60.0
TOPIC_SECONDS = 5.0
"""Time for a broker to create a topic after it has answered."""
UNSENT_BYTES = 32 << 20
"""Maximum bytes waiting to be sent."""
ROWS = {"json": 1, "csv": 1, "arrow": 1000}
"""Default number of events per record."""

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
        url: Its address.
        options: Options of kafka-python's producer.
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
        self.num_partitions = 0
        try:
            with notices.in_background():
                with checking_options():
                    self._producer = kafka.KafkaProducer(**settings)
                patience = self._producer.config["max_block_ms"]
                self._producer.config["max_block_ms"] = 500  # to look at `watch` in between
                deadline = time.monotonic() + notices.left
                while not self.num_partitions:
                    try:
                        self.num_partitions = len(self._producer.partitions_for(self.name))
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

    def send(self, value: bytes, partition: int | None, key: bytes | None = None) -> None:
        """Queue a record for sending; blocks while the queue is full."""
        self._check()
        if self._unsent + len(value) > UNSENT_BYTES:
            self.flush()
        self._unsent += len(value)
        try:
            future = self._producer.send(self.name, value=value, key=key, partition=partition)
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


class Publisher(AbstractContextManager["Publisher"]):
    """Writes events to a topic."""

    def __init__(
        self,
        url: str,
        ids: NodeIds,
        *,
        codec: CodecName = "arrow",
        records: int | None = None,
        partition_by: PartitionBy = "src",
        options: Mapping[str, Any] | None = None,
        connect_timeout: float = FLUSH_SECONDS,
    ) -> None:
        if codec not in ROWS:
            raise ValueError(f"codec is {codec!r}; topics are written as {', '.join(ROWS)}")
        if partition_by not in get_args(PartitionBy):
            known = " or ".join(get_args(PartitionBy))
            raise ValueError(f"partition_by must be {known}, got {partition_by!r}")
        self._size = ROWS[codec] if records is None else records
        if self._size < 1 or (codec == "json" and self._size > 1):
            text = "a JSON record holds one event" if self._size > 1 else "it must be at least 1"
            raise ValueError(f"records is {self._size}, but {text}")
        self._ids, self._codec, self._by = ids, codec, partition_by
        self._schema: pa.Schema | None = None
        self.topic = Topic(url, options, connect_timeout=connect_timeout)
        self.num_events = self.num_records = 0

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            self.topic.close()

    def send(self, events: EventBatch) -> None:
        """Queue events for sending, in order within each partition."""
        if not len(events):
            return
        rows = replace(events, x=None).to_arrow(self._ids)
        if events.x is not None:
            x = pa.array(events.x.numpy().astype(np.float32, copy=False).reshape(-1))
            if events.x_dim > 1:
                x = pa.FixedSizeListArray.from_arrays(x, events.x_dim)
            rows = rows.append_column("x", x)
        self._schema = rows.schema
        if self._by == "round_robin":
            self._send(rows, None)
            return
        partition = _partition_of(rows["src"], self.topic.num_partitions)
        for number in np.unique(partition).tolist():
            here = np.flatnonzero(partition == number)
            self._send(rows if len(here) == len(rows) else rows.take(pa.array(here)), number)

    def flush(self) -> None:
        """Block until the broker has acknowledged all events."""
        self.topic.flush()

    def describe(self) -> str:
        """Describe the events written and their target: "40 records to 3 partitions of edges"."""
        topic = self.topic
        return f"{self.num_records:,} records to {topic.num_partitions} partitions of {topic.name}"

    def how_to_read(self) -> dict[str, str]:
        """Return the settings that read these records, such as {"codec": "arrow"}."""
        found: dict[str, str] = {"codec": self._codec}
        schema = self._schema
        if schema is None:
            return found
        found |= {name: name for name in OPTIONAL if name in schema.names}
        if "x" in schema.names:
            kind = schema.field("x").type
            is_list = pa.types.is_fixed_size_list(kind)
            found["features"] = f"x[{kind.list_size}]" if is_list else "x"
        if pa.types.is_string(schema.field("src").type):
            found["id_kind"] = "string"
        return found

    def _send(self, rows: pa.RecordBatch, partition: int | None) -> None:
        """Send records to a partition; None: round-robin."""
        for start in range(0, len(rows), self._size):
            part = rows.slice(start, self._size)
            turn = self.num_records % self.topic.num_partitions
            self.topic.send(_encoded(part, self._codec), turn if partition is None else partition)
            self.num_events += len(part)
            self.num_records += 1


def _encoded(rows: pa.RecordBatch, codec: CodecName) -> bytes:
    """Encode rows as one record; for JSON a single row."""
    if codec == "arrow":
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        data: bytes = sink.getvalue().to_pybytes()
        return data
    if codec == "json":
        [row] = rows.to_pylist()
        return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode()
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    for row in rows.to_pylist():
        x = row.pop("x", [])
        lines.writerow([*row.values(), *(x if isinstance(x, list) else [x])])
    return out.getvalue().removesuffix("\n").encode()


def _partition_of(src: pa.Array, num_partitions: int) -> Any:
    """Return the partition of each source node, int64: a node always maps to the same one."""
    if pa.types.is_integer(src.type):
        return np.mod(src.to_numpy(), num_partitions)
    from crc32c import crc32c

    texts = src.to_pylist()
    hashes = np.fromiter((crc32c(text.encode()) for text in texts), np.int64, len(texts))
    return hashes % num_partitions
