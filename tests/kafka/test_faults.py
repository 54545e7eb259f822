"""KafkaSource against a broker that is not well: cases K1 to K15."""

from __future__ import annotations

import threading
import time

import pytest
from chaos import ChaosProxy
from kafka_help import Reading, edges, open_source, publish, read, read_all, read_on

from tgflow.streams.clock import SystemClock
from tgflow.streams.errors import (
    SourceCorrupt,
    SourceExpired,
    SourceMismatch,
    SourceTruncated,
    SourceUnavailable,
)
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.partition import PartitionState
from tgflow.streams.ingest.state import IngestState
from tgflow.streams.kafka.consumer import ConsumerConnection
from tgflow.streams.kafka.retry import RetryPolicy, RetryState
from tgflow.testing.broker import CUT, FETCH, OFFSET_COMMIT, MockBroker

pytestmark = pytest.mark.timeout(60)
PATIENT = {"request_timeout_ms": 3000, "connections_max_idle_ms": 10_000}
SMALL = {"max_partition_fetch_bytes": 8192}


@pytest.fixture
def proxy(broker):
    """Return a proxy that the broker sends all its clients to."""
    proxy = ChaosProxy(broker.servers[0]).advertise(broker)
    yield proxy
    proxy.close()


def after(rows):
    """Return a stop for `read` once partition 0 has so many rows."""
    return lambda reading: len(reading.src()) >= rows


def test_k1_brokers_down_in_mid_read(broker):
    broker.create("edges", 1)
    publish(broker, "edges", edges(2000), batch_size=4000)
    source = open_source(broker, "edges", options=PATIENT | SMALL, queue_records=400)
    reading = read(source, stop=after(500))
    broker("broker_set_down", -1)
    threading.Timer(3.0, lambda: broker("broker_set_up", -1)).start()
    read_on(source, reading, timeout=40)
    source.close()
    assert reading.src() == list(range(2000))
    assert reading.counts == {}
    assert source.counters()["outage_seconds"] > 1.0


@pytest.mark.parametrize("seed", [1, 2])
def test_k2_connections_cut_every_40_kb(broker, seed):
    broker.create("edges", 2)
    for partition in (0, 1):
        publish(broker, "edges", edges(3000), partition, batch_size=4000)
    proxy = ChaosProxy(broker.servers[0], seed).advertise(broker)
    proxy.cut_every = 40_000
    source = open_source(broker, "edges", servers=[proxy.server], options=SMALL)
    reading = read(source, timeout=50)
    source.close()
    proxy.close()
    assert proxy.num_cuts > 2, f"seed {seed}"
    assert reading.src(0) == reading.src(1) == list(range(3000))
    assert reading.counts == {}


def test_k3_a_black_hole(broker, proxy):
    broker.create("edges", 1)
    publish(broker, "edges", edges(2000), batch_size=4000)
    options = PATIENT | SMALL | {"request_timeout_ms": 1500}
    source = open_source(
        broker, "edges", servers=[proxy.server], options=options, queue_records=400
    )
    reading = read(source, stop=after(500))
    proxy.hole = True
    threading.Timer(4.0, lambda: setattr(proxy, "hole", False)).start()
    read_on(source, reading, timeout=40)
    source.close()
    assert reading.src() == list(range(2000))
    assert source.counters()["outage_seconds"] > 1.0


def flip_large(times):
    """Return what flips one byte in the middle of large chunks, so many times."""
    left = [times]

    def damage(data):
        if len(data) > 3000 and left[0] > 0:
            left[0] -= 1
            data = bytearray(data)
            data[len(data) // 2] ^= 0x55
        return bytes(data)

    return damage


@pytest.mark.timeout(30)
def test_k4_a_byte_flipped_on_the_wire(broker, proxy):
    broker.create("edges", 1)
    publish(broker, "edges", edges(1000), batch_size=16_000)
    proxy.damage = flip_large(2)
    source = open_source(broker, "edges", servers=[proxy.server], options=SMALL)
    reading = read(source)
    source.close()
    assert reading.src() == list(range(1000))
    assert source.counters()["corrupt_reads"] >= 1
    assert source.counters()["rebuilds"] >= 1


@pytest.mark.timeout(30)
def test_k5_bytes_damaged_on_every_read(broker, proxy):
    broker.create("edges", 1)
    publish(broker, "edges", edges(200))
    publish(broker, "edges", edges(1000, 200), batch_size=60_000)
    proxy.damage = flip_large(10**9)
    source = open_source(broker, "edges", servers=[proxy.server])
    reading = Reading()
    with pytest.raises(SourceCorrupt, match="came damaged 5 times"):
        read(source, into=reading)
    source.close()
    done = reading.src()
    assert done == list(range(len(done)))  # nothing was skipped


def first_position(broker, count=60, stop=30, **settings):
    """Return the position after some records of a topic that has more."""
    broker.create("edges", 1)
    publish(broker, "edges", edges(stop))
    publish(broker, "edges", edges(count - stop, stop))
    settings = {"until_end": False} | settings
    source = open_source(broker, "edges", **settings)
    reading = read(source, stop=after(stop))
    source.close()
    return next(a.rows.position for a in reading.arrivals if a.rows.position["offset"] >= stop)


def test_k6_retention_passes_the_position(broker):
    position = first_position(broker)
    broker("partition_delete_records", "edges", 0, position["offset"] + 7)
    source = open_source(broker, "edges", until_end=False)
    with pytest.raises(SourceExpired, match="no longer kept"):
        source.start({0: position})
    source.close()


def test_k6_with_skip_the_gap_is_counted(broker):
    position = first_position(broker)
    begin = position["offset"] + 7
    broker("partition_delete_records", "edges", 0, begin)
    publish(broker, "edges", edges(5, 60))
    source = open_source(broker, "edges", on_expired="skip")
    reading = read(source, {0: position})
    source.close()
    assert reading.src() == list(range(begin, 65))
    assert reading.counts == {"gap": 7}
    assert [gap for arrivals in reading.arrivals for gap in arrivals.gaps] == [(begin - 7, begin)]


def test_k6_the_gap_stands_in_the_report(broker):
    position = first_position(broker)
    begin = position["offset"] + 7
    broker("partition_delete_records", "edges", 0, begin)
    front = PartitionState(position, seq=position["offset"])
    state = IngestState(partitions={0: front})
    ingest = Ingest(open_source(broker, "edges", on_expired="skip"), OrderConfig(), state=state)
    num_events = sum(len(batch) for batch in ingest)
    assert num_events == 60 - begin
    assert ingest.report()["counts"]["partitions"]["0"]["gaps"] == [[begin - 7, begin]]


def test_k6_retention_overtakes_a_running_source(broker):
    broker.create("edges", 1)
    publish(broker, "edges", edges(3000), batch_size=1000)
    source = open_source(broker, "edges", options=SMALL, queue_records=100)
    reading = read(source, stop=after(50))
    time.sleep(0.5)
    broker("partition_delete_records", "edges", 0, 2900)
    with pytest.raises(SourceExpired, match="no longer kept"):
        read_on(source, reading)
    source.close()
    assert reading.src() == list(range(len(reading.src())))


def test_k6_if_retention_took_only_the_anchor_reading_goes_on(broker, caplog):
    position = first_position(broker)
    broker("partition_delete_records", "edges", 0, position["offset"])
    source = open_source(broker, "edges", until_end=False)
    reading = read(source, {0: position}, stop=after(60 - position["offset"]))
    source.close()
    assert reading.src() == list(range(position["offset"], 60))
    assert "has expired; cannot tell whether the topic is the one" in caplog.text


@pytest.mark.parametrize(
    ("count", "error", "text"),
    [(20, SourceTruncated, "ends at offset 20"), (80, SourceMismatch, "is not the record")],
)
def test_k7_a_topic_made_anew(broker, count, error, text):
    position = first_position(broker)
    broker("topic_delete", "edges")
    broker.create("edges", 1)
    publish(broker, "edges", edges(count, 10_000))
    source = open_source(broker, "edges", until_end=False)
    with pytest.raises(error, match=text):
        source.start({0: position})
    source.close()


def test_k7_a_topic_with_fewer_partitions(broker):
    position = first_position(broker)
    source = open_source(broker, "edges")
    with pytest.raises(SourceTruncated, match="partition 3 is gone"):
        source.start({0: position, 3: position})
    source.close()


def test_k8_the_leader_moves():
    with MockBroker(3) as broker:
        broker.create("edges", 1)
        publish(broker, "edges", edges(3000), batch_size=2000)
        source = open_source(broker, "edges", options=SMALL, queue_records=200)
        reading = read(source, stop=after(200))
        for turn in range(3):
            broker("partition_set_leader", "edges", 0, turn + 1)
            read_on(source, reading, stop=after(200 + 800 * (turn + 1)))
        read_on(source, reading)
        source.close()
    assert reading.src() == list(range(3000))


def test_k9_partitions_added_while_running_join_when_looked_for(broker, monkeypatch):
    broker.create("edges", 3)
    for partition in range(3):
        publish(broker, "edges", edges(50, 100 * partition), partition)
    known = {0}
    monkeypatch.setattr(ConsumerConnection, "partitions", lambda self: frozenset(known))
    source = open_source(broker, "edges", until_end=False)
    reading = read(source, stop=after(50))
    assert source.look_for_partitions() == []
    known |= {1, 2}
    while not (new := source.look_for_partitions()):
        read_on(source, reading, stop=lambda _: True)
    assert new == source.partitions()[1:] == [1, 2]
    read_on(source, reading, stop=lambda r: len(r.src(1)) == len(r.src(2)) == 50)
    publish(broker, "edges", edges(5, 50))
    read_on(source, reading, stop=after(55))
    source.close()
    assert reading.src(0) == list(range(55))
    assert reading.src(1) == list(range(100, 150))
    assert source.counters()["rebuilds"] == 0


def test_k9_a_partition_that_comes_during_a_rebuild_is_read(broker, monkeypatch):
    broker.create("edges", 2)
    for partition in (0, 1):
        publish(broker, "edges", edges(50, 100 * partition), partition)
    known, opening, joined = {0}, threading.Event(), threading.Event()
    open_connection = ConsumerConnection.open
    monkeypatch.setattr(ConsumerConnection, "partitions", lambda self: frozenset(known))

    def slow_open(self, join):
        open_connection(self, join)
        if opening.is_set():
            opening.clear()
            assert joined.wait(20)

    monkeypatch.setattr(ConsumerConnection, "open", slow_open)
    source = open_source(broker, "edges", until_end=False)
    reading = read(source, stop=after(50))
    known.add(1)
    wait_for(lambda: 1 in source._poller.known)
    opening.set()
    source._poller._rejoin = True  # a rebuild, as after any failure
    wait_for(lambda: not opening.is_set())
    assert source.look_for_partitions() == [1]
    joined.set()
    read_on(source, reading, stop=lambda r: len(r.src(1)) == 50, timeout=15)
    source.close()


def test_k13_offsets_that_go_back_are_dropped_and_counted(broker, monkeypatch):
    from kafka import KafkaConsumer

    broker.create("edges", 1)
    publish(broker, "edges", edges(100), batch_size=1000)
    poll = KafkaConsumer.poll

    def twice(self, **options):
        return {tp: [*records[:5], *records] for tp, records in poll(self, **options).items()}

    monkeypatch.setattr(KafkaConsumer, "poll", twice)
    reading = read_all(broker, "edges")
    assert reading.src() == list(range(100))
    assert reading.counts["repeated"] >= 5


def test_k13_gaps_in_the_offsets_are_accepted(broker, monkeypatch):
    from kafka import KafkaConsumer

    broker.create("edges", 1)
    publish(broker, "edges", edges(100))
    poll = KafkaConsumer.poll

    def compacted(self, **options):
        found = poll(self, **options).items()
        return {tp: kept for tp, r in found if (kept := [x for x in r if x.offset % 3 == 0])}

    monkeypatch.setattr(KafkaConsumer, "poll", compacted)
    reading = read_all(broker, "edges")
    assert reading.src() == list(range(0, 100, 3))


def test_k15_a_group_is_told_the_offsets(broker):
    broker("group_initial_rebalance_delay_ms", 0)
    broker.create("edges", 1)
    publish(broker, "edges", edges(50))
    source = open_source(broker, "edges", group_id="lag")
    reading = read(source)
    source.committed(reading.positions)
    wait_for(lambda: source.counters()["group_commits"] == 1)
    source.close()
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=broker.servers, api_version=broker.api_version, group_id="lag"
    )
    assert consumer.committed(TopicPartition("edges", 0)) == 50
    consumer.close()


def test_k15_a_commit_that_fails_does_not_matter(broker):
    broker.create("edges", 1)
    publish(broker, "edges", edges(50))
    source = open_source(broker, "edges", group_id="lag", options=PATIENT)
    reading = read(source, stop=after(20))
    broker.fail(OFFSET_COMMIT, [29] * 20)  # not authorized
    began = time.monotonic()
    source.committed(reading.positions)
    assert time.monotonic() - began < 0.1
    read_on(source, reading)
    wait_for(lambda: source.counters()["group_commit_failures"] >= 1)
    source.close()
    assert reading.src() == list(range(50))


def wait_for(condition, timeout=15.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_fetches_cut_and_refused_are_asked_again(broker):
    broker.create("edges", 1)
    publish(broker, "edges", edges(1000), batch_size=2000)
    broker.fail(FETCH, [CUT, CUT, 6, 6, 7, CUT])  # not the leader, timed out
    assert read_all(broker, "edges", options=SMALL).src() == list(range(1000))


def test_a_broker_away_for_too_long_is_an_error(broker):
    broker.create("edges", 1)
    publish(broker, "edges", edges(50))
    source = open_source(broker, "edges", until_end=False, max_outage=2.0, options=PATIENT)
    reading = read(source, stop=after(50))
    broker.kill()
    with pytest.raises(SourceUnavailable, match="no answer from the broker"):
        read_on(source, reading, stop=after(51))
    source.close()


def test_a_topic_deleted_while_reading_is_missed(broker):
    broker.create("edges", 1)
    publish(broker, "edges", edges(50))
    options = PATIENT | {"metadata_max_age_ms": 500}
    source = open_source(broker, "edges", until_end=False, max_outage=2.0, options=options)
    reading = read(source, stop=after(50))
    broker("topic_delete", "edges")
    with pytest.raises((SourceUnavailable, SourceTruncated)):
        read_on(source, reading, stop=after(51))
    source.close()


def test_fetches_refused_for_ever_are_an_outage(broker, caplog):
    broker.create("edges", 1)
    publish(broker, "edges", edges(50))
    broker.fail(FETCH, [29] * 3000)  # not authorized
    source = open_source(broker, "edges", max_outage=3.0)
    with pytest.raises(SourceUnavailable, match=r"no record for .* although the topic holds more"):
        read(source, timeout=20)
    source.close()
    assert source.counters()["outage_seconds"] >= 3.0


def test_fetches_refused_for_a_while_are_borne(broker, monkeypatch, caplog):
    from kafka import KafkaConsumer

    broker.create("edges", 1)
    publish(broker, "edges", edges(50))
    poll, refused = KafkaConsumer.poll, [True]

    def may_refuse(self, **options):
        if refused:
            time.sleep(0.05)
        return {} if refused else poll(self, **options)

    monkeypatch.setattr(KafkaConsumer, "poll", may_refuse)
    source = open_source(broker, "edges")
    source.start({})
    wait_for(lambda: source.counters()["rebuilds"] >= 2)
    refused.clear()
    reading = read_on(source, Reading())
    source.close()
    assert reading.src() == list(range(50))
    assert "see whether it may be read" in caplog.text


def test_a_broker_that_comes_late_is_waited_for(broker, proxy):
    broker.create("edges", 1)
    publish(broker, "edges", edges(50))
    proxy.refuse(True)
    source = open_source(broker, "edges", servers=[proxy.server], options=PATIENT)
    threading.Timer(2.0, proxy.refuse, (False,)).start()
    reading = read(source)
    source.close()
    assert reading.src() == list(range(50))


def test_who_waits_for_a_broker_is_stopped_at_once(broker, proxy):
    broker.create("edges", 1)
    position = first_position(broker)
    proxy.refuse(True)
    stop = threading.Event()
    source = open_source(broker, "edges", servers=[proxy.server], until_end=False)
    source.stop = stop.is_set
    threading.Timer(1.0, stop.set).start()
    began = time.monotonic()
    source.start({0: position})
    assert source.poll({0}, 30.0) == []
    assert time.monotonic() - began < 5.0
    assert source.partitions() == []
    source.close()


def test_who_waits_for_records_is_stopped_at_once(shared_broker, topic):
    shared_broker.create(topic, 1)
    source = open_source(shared_broker, topic, until_end=False)
    stop = threading.Event()
    source.stop = stop.is_set
    source.start({})
    source.poll({0}, 5.0)
    threading.Timer(0.5, stop.set).start()
    began = time.monotonic()
    assert source.poll({0}, 30.0) == []
    assert time.monotonic() - began < 5.0
    source.close()


class TestRetryState:
    def damage(self, retry, *offsets, text="2 bytes are left"):
        for offset in offsets:
            retry.note_failure(ValueError(text), {0: offset, 1: 9})

    def test_the_same_damage_at_the_same_place_is_an_error(self):
        retry = RetryState("topic edges", 600.0, RetryPolicy(), SystemClock())
        self.damage(retry, 7, 7, 7, 7)
        with pytest.raises(SourceCorrupt, match="came damaged 5 times"):
            self.damage(retry, 7)

    def test_damage_elsewhere_is_counted_for_itself(self):
        retry = RetryState("topic edges", 600.0, RetryPolicy(), SystemClock())
        for first in range(0, 1000, 100):
            for _ in range(2):
                retry.note_failure(ValueError("2 bytes are left"), {0: first})

    def test_damage_that_was_read_past_is_forgotten(self):
        retry = RetryState("topic edges", 600.0, RetryPolicy(), SystemClock())
        for offset in range(20):
            retry.note_failure(ValueError("2 bytes are left"), {0: offset})
            retry.note_failure(ValueError("3 bytes are left"), {0: offset})
        assert retry.corrupt == 40

    def test_what_fails_for_ever_without_a_place_is_an_outage(self):
        clock = FakeClock()
        retry = RetryState("topic edges", 600.0, RetryPolicy(), clock)
        for clock.now in range(0, 600, 100):
            retry.note_failure(AttributeError("no such thing"), {})
        clock.now = 600
        with pytest.raises(SourceUnavailable, match="AttributeError"):
            retry.note_failure(AttributeError("no such thing"), {})


class FakeClock:
    now = 0.0

    def monotonic(self):
        return self.now


@pytest.mark.timeout(30)
def test_trap_1_an_exception_while_unpacking_never_hangs(broker, monkeypatch):
    """kafka-python raises such an exception once, and spins for ever at the next poll."""
    from kafka.record.default_records import DefaultRecordBatch

    broker.create("edges", 1)
    publish(broker, "edges", edges(100))
    validate, calls = DefaultRecordBatch.validate_crc, []

    def sometimes(self):
        calls.append(1)
        return len(calls) > 3 and validate(self)

    monkeypatch.setattr(DefaultRecordBatch, "validate_crc", sometimes)
    source = open_source(broker, "edges")
    reading = read(source)
    source.close()
    assert reading.src() == list(range(100))
    assert source.counters()["corrupt_reads"] == 3


@pytest.mark.timeout(30)
def test_a_call_that_never_returns_is_left_behind(broker, monkeypatch):
    from kafka import KafkaConsumer

    broker.create("edges", 1)
    publish(broker, "edges", edges(500), batch_size=1000)
    poll, calls, forever = KafkaConsumer.poll, [], threading.Event()

    def hangs(self, **options):
        calls.append(1)
        if len(calls) == 3:
            forever.wait(25)
        return poll(self, **options)

    monkeypatch.setattr(KafkaConsumer, "poll", hangs)
    source = open_source(broker, "edges", options=SMALL, retry=RetryPolicy(hang=0.7))
    reading = read(source)
    forever.set()
    source.close()
    assert reading.src() == list(range(500))
    assert source.counters()["hung_polls"] == 1


@pytest.mark.timeout(60)
def test_rows_of_a_record_are_resumed_through_a_broker(broker):
    """R10: the position is (offset, row)."""
    import numpy as np
    import pyarrow as pa

    from tgflow.streams.rows.checks import Checks

    count = 70_000
    columns = [pa.array(np.arange(count)), pa.array(np.ones(count, np.int64))]
    batch = pa.RecordBatch.from_arrays([*columns, columns[0]], names=["src", "dst", "t"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    value = sink.getvalue().to_pybytes()
    broker.create("edges", 1)
    publish(broker, "edges", [value, value], max_request_size=4 << 20)
    settings = {"codec": "arrow", "checks": Checks(max_record_bytes=4 << 20)}
    whole = read_all(broker, "edges", **settings)
    middle = next(a.rows.position for a in whole.arrivals if a.rows.position["row"])
    source = open_source(broker, "edges", **settings)
    rest = read(source, {0: middle})
    source.close()
    start = middle["offset"] * count + middle["row"]
    assert rest.src() == whole.src()[start:]
