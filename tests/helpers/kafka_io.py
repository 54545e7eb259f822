"""Kafka records: produced, read, decoded without a broker, and sent through a faulty proxy."""

import asyncio
import json
import random
import threading
import time
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from tgflow.streams.kafka import KafkaConfig, KafkaSource
from tgflow.streams.kafka.codecs import RecordDecoder
from tgflow.streams.kafka.consumer import Chunk, Cursor
from tgflow.streams.kafka.retry import RetryPolicy

QUICK = RetryPolicy(first_wait=0.05, last_wait=0.4, idle=0.3, answer=2.0, starved=2.0)
"""Retry settings for a failing local broker."""
FAST = {"fetch_max_wait_ms": 50, "retry_backoff_ms": 20, "reconnect_backoff_max_ms": 200}
PATIENT = {"request_timeout_ms": 3000, "connections_max_idle_ms": 10_000}
SMALL = {"max_partition_fetch_bytes": 8192}
"""Options of waiting and of small fetches."""


def producer(broker, **options):
    from kafka import KafkaProducer

    settings = {"linger_ms": 20, "metrics_enabled": False}
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


CODECS = ("json", "csv", "arrow")


def config(codec, **settings):
    settings = {"time_unit": "s", "features": ["x[2]"]} | settings
    return KafkaConfig(url="kafka://h:1/edges", codec=codec, **settings)


def record(value, offset):
    return SimpleNamespace(value=value, key=None, offset=offset, timestamp=offset + 1000)


def decode(values, codec, **settings):
    polled = [record(value, 10 + i) for i, value in enumerate(values)]
    cursor = Cursor(9).after(polled[-1]) if values else Cursor(10)
    chunk = Chunk(0, polled, cursor, {})
    reading = Reading()
    reading.add(RecordDecoder(config(codec, **settings)).decode(chunk))
    return reading


def arrow(src, dst=None, t=None, x=None, **columns):
    n = len(src)
    found = {
        "src": pa.array(src),
        "dst": pa.array([1] * n if dst is None else dst),
        "t": pa.array([0] * n if t is None else t),
    }
    lists = [[0.5, 1.5]] * n if x is None else x
    found["x"] = pa.array(lists, pa.list_(pa.float32(), 2)) if lists is not False else None
    found |= columns
    batch = pa.RecordBatch.from_pydict({k: v for k, v in found.items() if v is not None})
    return arrow_stream(batch)


def arrow_stream(batch, options=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def row(codec, src, dst, t, x=(0.5, 1.5)):
    if codec == "json":
        return json.dumps({"src": src, "dst": dst, "t": t, "x": list(x)}).encode()
    if codec == "csv":
        return ",".join(str(v) for v in (src, dst, t, *x)).encode()
    return arrow([src], [dst], [t], [list(x)])


class ChaosProxy:
    """Forwards connections to a broker; its public fields say what goes wrong.

    Args:
        upstream: Host and port of the broker, as "host:port".
        seed: Of when connections are cut.
    """

    def __init__(self, upstream, seed=1):
        host, _, port = upstream.rpartition(":")
        self._upstream = host, int(port)
        self._random = random.Random(seed)
        self.cut_every = 0  # bytes to the client, on average
        self.closed = False  # connections are refused
        self.damage = None  # changes a chunk of bytes to the client
        self.num_cuts = 0
        self.port = 0
        self._connections = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    @property
    def server(self):
        return f"127.0.0.1:{self.port}"

    def advertise(self, broker, number=1):
        broker("broker_set_host_port", number, "127.0.0.1", self.port)
        return self

    def refuse(self, closed):
        self.closed = closed
        if closed:
            self._loop.call_soon_threadsafe(self._abort_all)

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)

    async def _main(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        self._abort_all()

    def _abort_all(self):
        for writer in list(self._connections):
            writer.transport.abort()

    async def _accept(self, reader, writer):
        if self.closed:
            writer.transport.abort()
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, upstream_writer}
        self._connections |= pair
        await asyncio.gather(
            self._pipe(reader, upstream_writer, pair, False),
            self._pipe(upstream_reader, writer, pair, True),
        )
        self._connections -= pair

    async def _pipe(self, reader, writer, pair, to_client):
        left = self._random.expovariate(1 / self.cut_every) if self.cut_every else float("inf")
        try:
            while data := await reader.read(65536):
                if to_client:
                    if self.damage is not None:
                        data = self.damage(data)
                    left -= len(data)
                    if left <= 0:
                        writer.write(data[: len(data) // 2])
                        self.num_cuts += 1
                        return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            for end in pair:
                end.transport.abort()
