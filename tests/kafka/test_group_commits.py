"""Offsets committed to a consumer group, so that operators see the lag."""

from __future__ import annotations

import time

import pytest

from helpers.kafka_io import (
    PATIENT,
    after,
    edges,
    open_source,
    publish,
    read,
    read_on,
    wait_for,
)
from tgflow.testing.broker import OFFSET_COMMIT

pytestmark = pytest.mark.timeout(60)


def test_offsets_are_committed_to_the_group(broker, topic):
    broker.create(topic, 1)
    publish(broker, topic, edges(50))
    source = open_source(broker, topic, group_id=topic)
    reading = read(source)
    source.committed(reading.positions)
    wait_for(lambda: source.counters()["group_commits"] == 1)
    source.close()
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=broker.servers, api_version=broker.api_version, group_id=topic
    )
    assert consumer.committed(TopicPartition(topic, 0)) == 50
    consumer.close()


def test_a_commit_that_fails_does_not_stop_reading(broker, topic):
    broker.create(topic, 1)
    publish(broker, topic, edges(50))
    source = open_source(broker, topic, group_id=topic, options=PATIENT)
    reading = read(source, stop=after(20))
    broker.fail(OFFSET_COMMIT, [29] * 20)  # not authorized
    began = time.monotonic()
    source.committed(reading.positions)
    assert time.monotonic() - began < 0.1
    read_on(source, reading)
    wait_for(lambda: source.counters()["group_commit_failures"] >= 1)
    source.close()
    assert reading.src() == list(range(50))
