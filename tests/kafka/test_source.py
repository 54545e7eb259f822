"""KafkaSource against a broker that is well: positions, ends, back-pressure, lag."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from helpers.kafka_io import (
    PATIENT,
    QUICK,
    Reading,
    after,
    edges,
    fill,
    open_source,
    publish,
    read,
    read_all,
    read_on,
    wait_for,
)
from tgflow.streams.errors import SourceUnavailable
from tgflow.streams.kafka import KafkaConfig, KafkaSource
from tgflow.streams.kafka.config import FIXED_OPTIONS, client_values, parse_url
from tgflow.streams.kafka.consumer import ConsumerConnection
from tgflow.testing.broker import OFFSET_COMMIT

pytestmark = pytest.mark.timeout(60)


def test_a_resumed_run_ends_where_the_first_one_would_have(shared_broker, topic):
    shared_broker.create(topic, 2)
    publish(shared_broker, topic, edges(50))
    source = open_source(shared_broker, topic)
    source.start({})
    polled = source.poll({0, 1}, 5.0)
    positions = {a.partition: a.position for a in polled if not a.num_rows}
    source.close()
    assert positions[1]["end"] == 0  # known before anything has come
    publish(shared_broker, topic, edges(50, 50))
    publish(shared_broker, topic, edges(10), partition=1)
    source = open_source(shared_broker, topic)
    reading = read(source, positions)
    source.close()
    assert reading.src(0) == list(range(50))
    assert reading.src(1) == []


def test_a_run_that_had_ended_continues_to_the_end_there_is_now(shared_broker, topic):
    shared_broker.create(topic, 2)
    publish(shared_broker, topic, edges(50))
    positions = read_all(shared_broker, topic).positions
    publish(shared_broker, topic, edges(20, 50))
    publish(shared_broker, topic, edges(10), partition=1)
    for expected in (list(range(50, 70)), []):
        source = open_source(shared_broker, topic)
        reading = read(source, positions)
        source.close()
        assert reading.src(0) == expected
        assert source.progress() == 1.0
        positions = positions | reading.positions
    assert positions[1]["offset"] == 10


def test_an_empty_topic_has_ended(shared_broker, topic):
    shared_broker.create(topic, 3)
    assert read_all(shared_broker, topic).rows == {0: [], 1: [], 2: []}


def test_a_queue_full_of_what_nobody_wants_keeps_nobody_waiting(shared_broker, topic):
    fill(shared_broker, topic, 1000, 2, batch_size=2000)
    source = open_source(shared_broker, topic, queue_records=100)
    source.start({})
    reading = Reading()
    read_on(source, reading, stop=lambda r: len(r.src(1)) == 1000, wanted={1})
    assert reading.src(0) == []
    read_on(source, reading)
    source.close()
    assert reading.src(0) == list(range(1000))


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_partition_that_came_in_part_is_read_on_after_a_pause(
    shared_broker, topic, monkeypatch, is_alone
):
    """kafka-python never reads what it set aside on, if another partition was read meanwhile."""
    monkeypatch.setitem(FIXED_OPTIONS, "max_poll_records", 100)
    fill(shared_broker, topic, 250, 2)
    config = open_source(shared_broker, topic)._config
    seen = {0: 0, 1: 0}
    with closing(ConsumerConnection(config, {}, 5000, lambda: None)) as connection:

        def read_until(done):
            while not done():
                for chunk in connection.poll(0.1):
                    seen[chunk.partition] += len(chunk.records)

        connection.open(None)
        read_until(lambda: sum(seen.values()) >= 100)
        in_part = max(seen, key=seen.__getitem__)
        if not is_alone:
            connection.pause({0, 1})
            assert connection.poll(0.1) == []
        connection.pause({in_part})
        read_until(lambda: seen[1 - in_part] == 250)
        connection.pause(())
        read_until(lambda: seen[in_part] == 250)


def test_a_missing_broker_is_said_in_time():
    config = KafkaConfig(url="kafka://127.0.0.1:1/edges", max_outage=0.3, poll_timeout=0.1)
    source = KafkaSource(config, retry=QUICK)
    with pytest.raises(ValueError, match="no answer from"):
        source.start({})
    source.close()


def test_options_that_cannot_work_are_said_at_once(shared_broker, topic):
    shared_broker.create(topic, 1)
    source = open_source(shared_broker, topic, options={"no_such_option": 1})
    with pytest.raises(SourceUnavailable, match="no_such_option"):
        source.start({})
    source.close()


@pytest.mark.parametrize(
    "option",
    ["check_crcs", "auto_offset_reset", "value_deserializer", "max_poll_records", "group_id"],
)
def test_options_that_exactly_once_rests_on_are_refused(option):
    with pytest.raises(ValueError, match=option):
        KafkaConfig(url="kafka://h:1/t", options={option: False})


def test_a_commit_that_fails_does_not_stop_reading(broker, topic):
    fill(broker, topic, 50)
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


def test_urls_options_and_features():
    for url in ("kafka://h/t", "kafka://h:1/", "kafka:h:1/t", "kafka://h:1/a b"):
        with pytest.raises(ValueError, match="is no kafka://HOST"):
            parse_url(url)
    assert parse_url("kafka://a:1,[::1]:2/edges") == (["a:1", "[::1]:2"], "edges")
    assert client_values({"api_version": [2, 3], "a": "b"}) == {"api_version": (2, 3), "a": "b"}
    with pytest.raises(ValueError, match="name each, or the width"):
        KafkaConfig(url="kafka://h:1/t", features=["f*"])
