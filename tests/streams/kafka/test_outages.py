"""Temporary and permanent failures of brokers and networks."""

import threading
import time
from dataclasses import replace

import pytest

from helpers.kafka_io import (
    PATIENT,
    QUICK,
    SMALL,
    Reading,
    after,
    edges,
    fill,
    first_position,
    open_source,
    publish,
    read,
    read_all,
    read_on,
)
from tgflow.streams.errors import SourceTruncated, SourceUnavailable
from tgflow.streams.kafka.retry import RetryPolicy
from tgflow.testing.broker import CUT, FETCH, MockBroker

pytestmark = pytest.mark.timeout(60)


def outage_of(source, seconds):
    """Return a `stop` for `read_on` that is true once the source has lost its broker."""
    return lambda reading: source.counters()["outage_seconds"] > seconds


def test_reading_resumes_after_a_broker_restart(broker, topic):
    fill(broker, topic, 2000, batch_size=4000)
    source = open_source(
        broker, topic, options=SMALL, queue_records=400, retry=replace(QUICK, answer=0.5)
    )
    reading = read(source, stop=after(500))
    broker("broker_set_down", -1)
    read_on(source, reading, stop=outage_of(source, 0.3))
    broker("broker_set_up", -1)
    read_on(source, reading)
    source.close()
    assert reading.src() == list(range(2000))
    assert reading.counts == {}


def test_connections_closed_every_40_kb_lose_and_repeat_nothing(broker, topic, proxy):
    fill(broker, topic, 2000, 2, batch_size=4000)
    proxy.cut_every = 40_000
    source = open_source(broker, topic, servers=[proxy.server], options=SMALL)
    reading = read(source, timeout=50)
    source.close()
    assert proxy.num_cuts > 2
    assert reading.src(0) == reading.src(1) == list(range(2000))
    assert reading.counts == {}


def test_partition_is_read_after_its_leader_moves():
    with MockBroker(3) as broker:
        broker.create("edges", 1)
        publish(broker, "edges", edges(1500), batch_size=2000)
        source = open_source(broker, "edges", options=SMALL, queue_records=200)
        reading = read(source, stop=after(200))
        for turn in range(3):
            broker("partition_set_leader", "edges", 0, turn + 1)
            read_on(source, reading, stop=after(200 + 400 * (turn + 1)))
        read_on(source, reading)
        source.close()
    assert reading.src() == list(range(1500))


def test_failed_fetches_are_retried(broker, topic):
    fill(broker, topic, 1000, batch_size=2000)
    broker.fail(FETCH, [CUT, CUT, 6, 6, 7, CUT])  # not the leader, timed out
    assert read_all(broker, topic, options=SMALL).src() == list(range(1000))


def test_topic_deleted_while_reading_is_detected(broker, topic):
    fill(broker, topic, 50)
    options = PATIENT | {"metadata_max_age_ms": 200}
    source = open_source(broker, topic, until_end=False, max_outage=0.8, options=options)
    reading = read(source, stop=after(50))
    broker("topic_delete", topic)
    with pytest.raises((SourceUnavailable, SourceTruncated)):
        read_on(source, reading, stop=after(51))
    source.close()


def test_permanently_refused_fetches_raise_an_outage(broker, topic, caplog):
    fill(broker, topic, 50)
    broker.fail(FETCH, [29] * 3000)  # not authorized
    source = open_source(broker, topic, max_outage=0.8)
    with pytest.raises(SourceUnavailable, match=r"no record for .* although the topic holds more"):
        read(source, timeout=20)
    source.close()
    assert source.counters()["outage_seconds"] >= 0.8


def test_waiting_for_a_broker_or_records_stops_immediately(broker, topic, proxy):
    position = first_position(broker, topic)
    proxy.refuse(True)
    stop = threading.Event()
    source = open_source(broker, topic, servers=[proxy.server], until_end=False)
    source.stop = stop.is_set
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    source.start({0: position})
    assert source.poll({0}, 30.0) == []
    assert time.monotonic() - began < 5.0
    assert source.partitions() == []
    proxy.refuse(False)
    source.stop = lambda: False
    source.start({0: position})
    read_on(source, Reading(), stop=after(30))
    stop.clear()
    source.stop = stop.is_set
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    assert source.poll({0}, 30.0) == []  # it waits for records
    assert time.monotonic() - began < 5.0
    source.close()


@pytest.mark.timeout(30)
def test_client_call_that_never_returns_is_abandoned(broker, topic, monkeypatch):
    from kafka import KafkaConsumer

    fill(broker, topic, 500, batch_size=1000)
    poll, calls, forever = KafkaConsumer.poll, [], threading.Event()

    def hangs(self, **options):
        calls.append(1)
        if len(calls) == 3:
            forever.wait(25)
        return poll(self, **options)

    monkeypatch.setattr(KafkaConsumer, "poll", hangs)
    source = open_source(broker, topic, options=SMALL, retry=RetryPolicy(hang=0.7))
    reading = read(source)
    forever.set()
    source.close()
    assert reading.src() == list(range(500))
    assert source.counters()["hung_polls"] == 1
