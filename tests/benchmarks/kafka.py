"""Ingest speed of a Kafka topic: many edges per record, and one.

The broker is librdkafka's mock cluster in a separate process, on the same cores. The baseline is
kafka-python alone in the same run: polled records with decoded columns, without validation,
ordering or storage.
"""

import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.options import Options
from benchmarks.race import take_turns
from benchmarks.results import Params, Row, skipped
from tgflow.checkpoint.durable.log import DurableLog
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.kafka import KafkaConfig, KafkaSource
from tgflow.streams.kafka.config import CodecName, kafka_client
from tgflow.testing.broker import MockBroker

PARTITIONS = 8
NODES = 5000
ROWS = 1000
"""Edges of a record with many."""
EVENTS = {"arrow": 280_000, "json": 60_000}
"""Events of a partition; the mock broker keeps 5 MiB of each."""
TARGETS = {"arrow": 2e6, "json": 120e3}
NAMES = {"arrow": "Kafka to log, arrow", "json": "Kafka to log, json"}
_NEEDS = ("kafka", "crc32c", "confluent_kafka")


def run(options: Options) -> list[Row]:
    """Measure both codecs on one generated stream; missing packages give skipped rows."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"there is no {missing[0]}"
        return [skipped(name, "events/s", {}, reason) for name in NAMES.values()]
    codecs: tuple[CodecName, ...] = ("arrow", "json")
    return [row for codec in codecs for row in codec_rows(codec, options)]


def codec_rows(codec: CodecName, options: Options) -> Iterator[Row]:
    """One topic, read by kafka-python alone and into the log, in turns."""
    per_partition = EVENTS[codec] // (10 if options.quick else 1)
    options.say(f"stream: Kafka, {codec}")
    with MockBroker() as broker:
        broker.create("edges", PARTITIONS)
        fill(broker, codec, per_partition)
        total = per_partition * PARTITIONS
        ways: dict[str, Callable[[], int]] = {
            "bare": lambda: read_bare(broker, codec, total),
            "log": lambda: read_to_log(broker, codec),
        }
        best = take_turns(
            {name: partial(read_whole, way, total) for name, way in ways.items()},
            num_calls=1,
            rounds=options.rounds,
        )
    bare, log = (total / float(best[name]) for name in ways)
    rows_each = 1 if codec == "json" else ROWS
    params: Params = {"events": total, "partitions": PARTITIONS, "edges a record": rows_each}
    yield Row(NAMES[codec], log, "events/s", params, TARGETS[codec], bare)


def read_whole(way: Callable[[], int], total: int, _: int) -> None:
    """Raise unless all events come."""
    if (count := way()) != total:
        raise RuntimeError(f"{count} events came, expected {total}")


def fill(broker: MockBroker, codec: str, count: int) -> None:
    """Publish `count` events to each partition, at times that interleave."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": ",".join(broker.servers),
            "batch.size": 900_000,
            "batch.num.messages": 20_000,
            "linger.ms": 50,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    for partition in range(PARTITIONS):
        for value in values(codec, count, partition):
            producer.produce("edges", value=value, partition=partition)
        producer.flush()


def values(codec: str, count: int, partition: int) -> Iterator[bytes]:
    """Yield the records of a partition."""
    order = np.arange(count)
    src, dst, t = order % NODES, order * 7 % NODES, order * PARTITIONS + partition
    if codec == "json":
        for edge in zip(src.tolist(), dst.tolist(), t.tolist(), strict=True):
            yield b'{"src":%d,"dst":%d,"t":%d}' % edge
        return
    columns = [pa.array(src.astype(np.int32)), pa.array(dst.astype(np.int32)), pa.array(t)]
    whole = pa.RecordBatch.from_arrays(columns, names=["src", "dst", "t"])
    for start in range(0, count, ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, whole.schema) as writer:
            writer.write_batch(whole.slice(start, ROWS))
        yield sink.getvalue().to_pybytes()


def read_bare(broker: MockBroker, codec: str, total: int) -> int:
    """Read all records by kafka-python alone, and decode their columns."""
    kafka = kafka_client()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.servers,
        api_version=broker.api_version,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        max_poll_records=10_000,
    )
    consumer.assign([kafka.TopicPartition("edges", p) for p in range(PARTITIONS)])
    decode = _decode_json if codec == "json" else _decode_arrow
    count = 0
    while count < total:
        for records in consumer.poll(timeout_ms=500).values():
            count += decode([record.value for record in records])
    consumer.close()
    return count


def _decode_json(records: list[bytes]) -> int:
    objects = [json.loads(record) for record in records]
    columns = [np.array([found[name] for found in objects]) for name in ("src", "dst", "t")]
    return len(columns[0])


def _decode_arrow(records: list[bytes]) -> int:
    return sum(len(pa.ipc.open_stream(record).read_all()) for record in records)


def source(broker: MockBroker, codec: CodecName) -> KafkaSource:
    """Return the topic as a source."""
    options = {"api_version": broker.api_version, "fetch_max_wait_ms": 50}
    config = KafkaConfig(url=broker.url("edges"), codec=codec, until_end=True, options=options)
    return KafkaSource(config)


def read_to_log(broker: MockBroker, codec: CodecName) -> int:
    """Read all events in their order, each written to the log before."""
    with tempfile.TemporaryDirectory() as folder:
        log = DurableLog(Path(folder) / "log")
        count = sum(map(len, Ingest(source(broker, codec), OrderConfig(), log=log)))
        log.sync()
        log.close()
    return count
