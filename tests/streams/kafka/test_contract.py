"""Requirements of the source on any broker: the mock by default, a real one if available.

`TGFLOW_TEST_KAFKA=HOST:PORT` names a real one, which must create topics on first write.
"""

import os
import time
import uuid

import pytest

from helpers.kafka_io import Reading, edges, open_source, producer, read, read_all, read_on
from helpers.kafka_io import publish as send

pytestmark = pytest.mark.timeout(120)
REAL = os.environ.get("TGFLOW_TEST_KAFKA", "")


def publish(broker, topic, values, **options):
    """Send records, the last in a batch of its own.

    The end offset that tansu reports is one after the first record of the last batch.
    """
    send(broker, topic, values[:-1], **options)
    send(broker, topic, values[-1:], **options)


class NamedBroker:
    """An external broker."""

    servers = (REAL,)
    api_version = None

    def create(self, topic, partitions=1):
        sender = producer(self)
        try:
            deadline = time.monotonic() + 30
            while not sender.partitions_for(topic):
                assert time.monotonic() < deadline
        finally:
            sender.close(timeout=5)


@pytest.fixture
def any_broker(shared_broker):
    return NamedBroker() if REAL else shared_broker


@pytest.fixture
def topic(any_broker):
    name = f"contract-{uuid.uuid4().hex[:12]}"
    any_broker.create(name)
    return name


class TestBrokerContract:
    def test_records_are_read_once_in_order(self, any_broker, topic):
        publish(any_broker, topic, edges(2000))
        publish(any_broker, topic, edges(500, 2000), compression_type="gzip")
        reading = read_all(any_broker, topic)
        assert reading.src() == list(range(2500))
        assert reading.counts == {}

    def test_resuming_at_any_position(self, any_broker, topic):
        for first in range(0, 300, 100):
            publish(any_broker, topic, edges(100, first))
        source = open_source(any_broker, topic, queue_records=50)
        whole = read(source)
        source.close()
        assert whole.src() == list(range(300))
        for arrivals in (a for a in whole.arrivals if a.partition == 0):
            source = open_source(any_broker, topic)
            rest = read(source, {**whole.positions, 0: arrivals.position})
            source.close()
            assert rest.src() == list(range(arrivals.position["offset"], 300))

    def test_end_offset_is_fixed_at_the_start(self, any_broker, topic):
        publish(any_broker, topic, edges(20))
        source = open_source(any_broker, topic)
        source.start({})
        publish(any_broker, topic, edges(20, 20))
        reading = read_on(source, Reading())
        source.close()
        assert reading.src() == list(range(20))

    def test_tombstones_are_skipped_and_counted(self, any_broker, topic):
        publish(any_broker, topic, [*edges(3), None, *edges(2, 3)])
        reading = read_all(any_broker, topic)
        assert reading.src() == list(range(5))
        assert reading.counts == {"tombstone": 1}

    def test_later_records_are_read(self, any_broker, topic):
        publish(any_broker, topic, edges(10))
        source = open_source(any_broker, topic, until_end=False)
        reading = read(source, stop=lambda r: len(r.src()) == 10)
        publish(any_broker, topic, edges(10, 10))
        read_on(source, reading, stop=lambda r: len(r.src()) == 20)
        assert source.lag()[0] == 0
        source.close()
        assert reading.src() == list(range(20))

    def test_offsets_are_committed_to_a_group(self, any_broker, topic):
        publish(any_broker, topic, edges(10))
        source = open_source(any_broker, topic, group_id=f"group-{topic}")
        reading = read(source)
        source.committed(reading.positions)
        deadline = time.monotonic() + 30
        while not source.counters()["group_commits"]:
            assert time.monotonic() < deadline
            if source.counters()["group_commit_failures"]:  # its coordinator was not ready
                source.committed(reading.positions)
            time.sleep(0.05)
        source.close()
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=any_broker.servers,
            api_version=any_broker.api_version,
            group_id=f"group-{topic}",
        )
        assert consumer.committed(TopicPartition(topic, 0)) == 10
        consumer.close()

    def test_missing_topic_is_reported(self, any_broker):
        source = open_source(any_broker, "there-is-none-of-this-name")
        with pytest.raises(ValueError, match="there is no such topic"):
            source.start({})
        source.close()

    def test_records_of_an_aborted_transaction_are_not_read(self, any_broker, topic, request):
        if not REAL or "TGFLOW_TANSU" in os.environ:
            text = "the mock shows aborted records, and its markers have a wrong CRC"
            if REAL:
                text = "tansu 0.6.0 returns aborted records, to librdkafka as well"
            request.applymarker(pytest.mark.xfail(reason=text, run=bool(REAL), strict=True))
        sender = producer(any_broker, transactional_id=topic)
        sender.init_transactions()
        for first, finish in ((0, sender.abort_transaction), (5, sender.commit_transaction)):
            sender.begin_transaction()
            for value in edges(5, first):
                sender.send(topic, value=value, partition=0)
            sender.flush(timeout=10)
            finish()
        sender.close(timeout=5)
        source = open_source(any_broker, topic)
        reading = read(source, timeout=20)
        source.close()
        assert reading.src() == list(range(5, 10))
