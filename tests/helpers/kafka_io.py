"""Helpers for Kafka tests: produce records, read a source to its end."""

from __future__ import annotations

import json
import time

import numpy as np

from tgflow.streams.kafka import KafkaConfig, KafkaSource
from tgflow.streams.kafka.retry import RetryPolicy

QUICK = RetryPolicy(first_wait=0.05, last_wait=0.4, idle=0.3, answer=2.0, starved=2.0)
"""Retry settings for a failing local broker."""
FAST = {"fetch_max_wait_ms": 50, "retry_backoff_ms": 20, "reconnect_backoff_max_ms": 200}


PATIENT = {"request_timeout_ms": 3000, "connections_max_idle_ms": 10_000}
SMALL = {"max_partition_fetch_bytes": 8192}
"""Options of waiting and of small fetches."""


def producer(broker, **options):
    from kafka import KafkaProducer

    settings = {"linger_ms": 20, "metrics_enabled": False} | dict(
        getattr(broker, "producer_options", {})
    )
    if broker.api_version:
        settings["api_version"] = broker.api_version
    return KafkaProducer(bootstrap_servers=broker.servers, **(settings | options))


def publish(broker, topic, values, partition=0, timestamp=1000, **options):
    """Send records, None for a tombstone, and wait for their acknowledgment."""
    sender = producer(broker, **options)
    try:
        futures = [
            sender.send(topic, value=value, key=b"k", partition=partition, timestamp_ms=timestamp)
            for value in values
        ]
        sender.flush(timeout=20)
        for future in futures:
            future.get(timeout=10)
    finally:
        sender.close(timeout=5)


def edge(src, dst=1, t=0, **extra):
    return json.dumps({"src": src, "dst": dst, "t": t, **extra}).encode()


def edges(count, first=0):
    """Return JSON records that differ in all but dst."""
    return [edge(i, 1, 10 * i) for i in range(first, first + count)]


def fill(broker, topic, count, partitions=1, **options):
    """Create a topic with so many records in each partition."""
    broker.create(topic, partitions)
    for partition in range(partitions):
        publish(broker, topic, edges(count), partition, **options)


def open_source(broker, topic, *, options=None, servers=None, retry=QUICK, **settings):
    url = f"kafka://{','.join(servers or broker.servers)}/{topic}"
    chosen = FAST | (options or {})
    if broker.api_version:
        chosen["api_version"] = broker.api_version
    constants = {"poll_timeout": 0.1, "queue_records": settings.pop("queue_records", 100_000)}
    config = KafkaConfig(url=url, options=chosen, **{"until_end": True} | settings)
    for name, value in constants.items():
        object.__setattr__(config, name, value)
    return KafkaSource(config, retry=retry)


class Reading:
    """Results of reading a source: rows by partition, bad rows, counts, positions."""

    def __init__(self):
        self.rows = {}
        self.bad = []
        self.counts = {}
        self.positions = {}
        self.arrivals = []

    def add(self, arrivals):
        self.arrivals.append(arrivals)
        events = arrivals.events
        rows = zip(events.src.to_pylist(), events.dst.to_pylist(), events.t.tolist(), strict=True)
        self.rows.setdefault(arrivals.partition, []).extend(rows)
        self.bad += [(arrivals.partition, row.code, row.origin) for row in arrivals.bad()]
        for name, count in arrivals.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.positions[arrivals.partition] = arrivals.position
        index = np.arange(arrivals.num_rows) if arrivals.index is None else arrivals.index
        numbers = sorted([*index.tolist(), *(row.index for row in arrivals.bad())])
        assert numbers == list(range(arrivals.num_rows))  # each row is good or bad

    def src(self, partition=0):
        return [src for src, _, _ in self.rows.get(partition, [])]

    @property
    def codes(self):
        return [code for _, code, _ in self.bad]


def read(source, positions=None, *, stop=None, timeout=30.0, into=None, wanted=None):
    """Start `source` and read until it ends or `stop(reading)` is true."""
    reading = into or Reading()
    source.start(positions or {})
    return read_on(source, reading, stop=stop, timeout=timeout, wanted=wanted)


def read_on(source, reading, *, stop=None, timeout=30.0, wanted=None):
    deadline = time.monotonic() + timeout
    while not (stop and stop(reading)):
        if source.ended() >= set(source.partitions()) and not stop:
            break
        assert time.monotonic() < deadline, f"not done after {timeout} s: {source.counters()}"
        for arrivals in source.poll(wanted or set(source.partitions()), 0.2):
            reading.add(arrivals)
    return reading


def read_all(broker, topic, **settings):
    source = open_source(broker, topic, **settings)
    try:
        return read(source)
    finally:
        source.close()


def after(rows):
    """Return a `stop` for `read` that is true once partition 0 has so many rows."""
    return lambda reading: len(reading.src()) >= rows


def wait_for(condition, timeout=15.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def first_position(broker, topic, count=60, stop=30, **settings):
    """Return the position after some records of a topic that has more."""
    broker.create(topic, 1)
    publish(broker, topic, edges(stop))
    publish(broker, topic, edges(count - stop, stop))
    settings = {"until_end": False} | settings
    source = open_source(broker, topic, **settings)
    reading = read(source, stop=after(stop))
    source.close()
    return next(a.position for a in reading.arrivals if a.position["offset"] >= stop)


def records_of(broker, topic):
    """Return key and value of each record of a topic of one partition."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=broker.servers, api_version=broker.api_version)
    partition, found = TopicPartition(topic, 0), []
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end, deadline = consumer.end_offsets([partition])[partition], time.monotonic() + 30
        while len(found) < end:
            assert time.monotonic() < deadline
            found += consumer.poll(timeout_ms=500).get(partition, [])
        return [(record.key, json.loads(record.value)) for record in found]
    finally:
        consumer.close()
