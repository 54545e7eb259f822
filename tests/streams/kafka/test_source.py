"""KafkaSource: positions, ends, partitions, back-pressure, lag."""

import socket
import threading
import time
from contextlib import closing
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from helpers.effort import slow
from helpers.kafka_io import (
    FAST,
    PATIENT,
    SMALL,
    Reading,
    after,
    edge,
    edges,
    fill,
    first_position,
    open_source,
    publish,
    read,
    read_all,
    read_on,
    wait_for,
)
from tgflow.streams.errors import (
    NoTopicError,
    SourceExpired,
    SourceMismatch,
    SourceTruncated,
    SourceUnavailable,
)
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.ingest_state import IngestState, PartitionState
from tgflow.streams.kafka import KafkaConfig
from tgflow.streams.kafka.config import FIXED_OPTIONS, client_values, parse_url
from tgflow.streams.kafka.consumer import ConsumerConnection, Cursor
from tgflow.streams.kafka.retry import ConnectionNotices
from tgflow.streams.kafka.source import first_id_kind_of
from tgflow.testing.broker import OFFSET_COMMIT

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("ids", [["u1", "7"], ["7", "8"], [7, "08"], [7, 8]])
def test_first_records_give_the_kind_of_ids_and_a_warning_of_times(broker, topic, ids, caplog):
    options = FAST | {"api_version": broker.api_version}
    url = f"kafka://{','.join(broker.servers)}/{topic}"
    config = KafkaConfig(url=url, options=options, until_end=True)
    unknown = ", as there is no record yet; --id-kind string takes text"
    with pytest.raises(NoTopicError, match="there is no such topic"):
        first_id_kind_of(config)
    broker.create(topic, 2)
    assert first_id_kind_of(config)[1] == unknown
    for partition, src in enumerate(ids):
        publish(broker, topic, [edge(src, t=1_600_000_000_000)], partition)
    kind = "int" if ids == [7, 8] else "string"
    assert first_id_kind_of(config)[0] == kind
    assert read_all(broker, topic, id_kind=kind).codes == []
    own = [line.message for line in caplog.records if not line.name.startswith("kafka.")]
    assert own == [  # the client speaks of connections that other tests have closed
        "the first time, 1,600,000,000,000 s, is after 2100 if it counts from 1970: --time-unit ms?"
    ]


def test_records_without_ids_are_said_to_have_none(broker, topic):
    broker.create(topic)
    publish(broker, topic, [b'{"user": "ann", "t": 1}', b'{"dst": "ann", "t": 1}'])
    config = open_source(broker, topic, src="who")._config
    assert first_id_kind_of(config)[0] == "string"
    found = first_id_kind_of(replace(config, dst="whom"))
    assert (
        found[1]
        == ", as the first records have no 'who' or 'whom'; --src and --dst name other fields"
    )
    assert [bad.text.partition(";")[0] for bad in read_all(broker, topic).arrivals[-1].bad()] == [
        "src is missing",
        "src is missing",
    ]


def test_broker_that_comes_up_later_gives_the_kind_of_ids(
    broker, topic, proxy, caplog, monkeypatch
):
    monkeypatch.setattr(ConnectionNotices, "FIRST_NOTICE", 0.5)
    fill(broker, topic, 0)
    publish(broker, topic, [None, edge("u1")])
    proxy.refuse(True)
    options = FAST | {"api_version": broker.api_version}
    config = KafkaConfig(url=f"kafka://{proxy.server}/{topic}", options=options)
    threading.Timer(1.5, proxy.refuse, [False]).start()
    assert first_id_kind_of(config) == ("string", ", as src of the first rows is 'u1'")
    assert f"topic {topic}: no answer from {proxy.server} for 1 s; trying for 60 s" in caplog.text


@pytest.mark.parametrize("is_closed", [True, slow(False)])
def test_kind_of_ids_is_not_guessed_without_a_broker(caplog, monkeypatch, is_closed):
    monkeypatch.setattr(ConnectionNotices, "FIRST_NOTICE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        if is_closed:
            silent.close()
        config = KafkaConfig(url=f"kafka://{server}/edges", connect_timeout=2.0)
        began = time.monotonic()
        with pytest.raises(SourceUnavailable, match=f"no answer from {server} within 2 s"):
            first_id_kind_of(config)
        assert time.monotonic() - began < 10  # 14 to 40 s in a blocking call
    assert f"no answer from {server} for 1 s; trying for 2 s" in caplog.text


def test_resumed_run_stops_at_the_original_end(shared_broker, topic):
    shared_broker.create(topic, 2)
    publish(shared_broker, topic, edges(50))
    source = open_source(shared_broker, topic)
    source.start({})
    polled = source.poll({0, 1}, 5.0)
    positions = {a.partition: a.position for a in polled if not a.num_rows}
    source.close()
    assert positions[1]["end"] == 0  # known before any record arrives
    publish(shared_broker, topic, edges(50, 50))
    publish(shared_broker, topic, edges(10), partition=1)
    source = open_source(shared_broker, topic)
    reading = read(source, positions)
    source.close()
    assert reading.src(0) == list(range(50))
    assert reading.src(1) == []


def test_finished_run_continues_to_the_current_end(shared_broker, topic):
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


def test_full_queue_of_an_unrequested_partition_does_not_block_others(shared_broker, topic):
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
def test_partially_fetched_partition_is_read_after_a_pause(
    shared_broker, topic, monkeypatch, is_alone
):
    """kafka-python drops a partially returned fetch if another partition was read meanwhile."""
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


@pytest.mark.parametrize(
    "option",
    ["check_crcs", "auto_offset_reset", "value_deserializer", "max_poll_records", "group_id"],
)
def test_options_required_for_exactly_once_cannot_be_overridden(option):
    with pytest.raises(ValueError, match=option):
        KafkaConfig(url="kafka://h:1/t", options={option: False})


def test_failed_commit_does_not_stop_reading(broker, topic):
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


def test_position_after_a_record_without_a_timestamp_is_valid():
    record = SimpleNamespace(offset=4, key=None, value=b"{}", timestamp=None)  # of an old broker
    cursor = Cursor(4).after(record)
    assert Cursor.from_position(asdict(cursor)) == cursor


def test_url_options_and_features_are_parsed():
    for url in ("kafka://h/t", "kafka://h:1/", "kafka:h:1/t", "kafka://h:1/a b"):
        with pytest.raises(ValueError, match="is not kafka://HOST"):
            parse_url(url)
    assert parse_url("kafka://a:1,[::1]:2/edges") == (["a:1", "[::1]:2"], "edges")
    assert client_values({"api_version": [2, 3], "a": "b"}, {}) == {"api_version": (2, 3), "a": "b"}
    with pytest.raises(ValueError, match="name each, or the width"):
        KafkaConfig(url="kafka://h:1/t", features=["f*"])


# Partitions that are added while a topic is read


def test_new_partitions_join_after_the_next_lookup(broker, topic, monkeypatch):
    broker.create(topic, 3)
    for partition in range(3):
        publish(broker, topic, edges(50, 100 * partition), partition)
    known = {0}
    monkeypatch.setattr(ConsumerConnection, "partitions", lambda self: frozenset(known))
    source = open_source(broker, topic, until_end=False)
    reading = read(source, stop=after(50))
    assert source.look_for_partitions() == []
    known |= {1, 2}
    while not (new := source.look_for_partitions()):
        read_on(source, reading, stop=lambda _: True)
    assert new == source.partitions()[1:] == [1, 2]
    read_on(source, reading, stop=lambda r: len(r.src(1)) == len(r.src(2)) == 50)
    publish(broker, topic, edges(5, 50))
    read_on(source, reading, stop=after(55))
    source.close()
    assert reading.src(0) == list(range(55))
    assert reading.src(1) == list(range(100, 150))
    assert source.counters()["rebuilds"] == 0


# Positions that the topic no longer holds, or holds otherwise


def test_expired_position_is_refused_or_skipped_as_a_gap(broker, topic):
    position = first_position(broker, topic)
    begin = position["offset"] + 7
    broker("partition_delete_records", topic, 0, begin)
    source = open_source(broker, topic, until_end=False)
    with pytest.raises(SourceExpired, match="no longer kept"):
        source.start({0: position})
    source.close()
    publish(broker, topic, edges(5, 60))
    state = IngestState(partitions={0: PartitionState(position, seq=position["offset"])})
    ingest = Ingest(open_source(broker, topic, on_expired="skip"), OrderConfig(), state=state)
    assert sum(len(batch) for batch in ingest) == 65 - begin
    counts = ingest.report()["counts"]["partitions"]["0"]
    assert (counts["other"], counts["gaps"]) == ({"gap": 7}, [[begin - 7, begin]])


def test_retention_past_a_running_source_ends_it(broker, topic):
    fill(broker, topic, 3000, batch_size=1000)
    source = open_source(broker, topic, options=SMALL, queue_records=100)
    reading = read(source, stop=after(50))
    broker("partition_delete_records", topic, 0, 2900)
    with pytest.raises(SourceExpired, match="no longer kept"):
        read_on(source, reading)
    source.close()
    assert reading.src() == list(range(len(reading.src())))


def test_reading_continues_if_only_the_anchor_record_expired(broker, topic, caplog):
    position = first_position(broker, topic)
    broker("partition_delete_records", topic, 0, position["offset"])
    source = open_source(broker, topic, until_end=False)
    reading = read(source, {0: position}, stop=after(60 - position["offset"]))
    source.close()
    assert reading.src() == list(range(position["offset"], 60))
    assert "has expired; cannot tell whether the topic is the one" in caplog.text


@pytest.mark.parametrize(
    ("count", "partition", "error", "text"),
    [
        (20, 0, SourceTruncated, "ends at offset 20"),
        (80, 0, SourceMismatch, "is not the record"),
        (80, 3, SourceTruncated, "partition 3 is gone"),
    ],
)
def test_recreated_topic_is_refused(broker, topic, count, partition, error, text):
    position = first_position(broker, topic)
    broker("topic_delete", topic)
    broker.create(topic, 1)
    publish(broker, topic, edges(count, 10_000))
    source = open_source(broker, topic, until_end=False)
    with pytest.raises(error, match=text):
        source.start({partition: position})
    source.close()


def test_repeated_offsets_are_dropped_and_gaps_accepted(broker, topic, monkeypatch):
    from kafka import KafkaConsumer

    fill(broker, topic, 100, batch_size=1000)
    poll = KafkaConsumer.poll

    def odd(self, **options):  # compacted, and delivered twice
        found = poll(self, **options).items()
        kept = {tp: [x for x in records if x.offset % 3 == 0] for tp, records in found}
        return {tp: [*records[:5], *records] for tp, records in kept.items() if records}

    monkeypatch.setattr(KafkaConsumer, "poll", odd)
    reading = read_all(broker, topic)
    assert reading.src() == list(range(0, 100, 3))
    assert reading.counts["repeated"] >= 5
