"""Positions that the topic no longer holds, or holds otherwise."""

from __future__ import annotations

import pytest

from helpers.kafka_io import (
    SMALL,
    after,
    edges,
    first_position,
    open_source,
    publish,
    read,
    read_all,
    read_on,
)
from tgflow.streams.errors import (
    SourceExpired,
    SourceMismatch,
    SourceTruncated,
)
from tgflow.streams.ingest.admission import PartitionState
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.state import IngestState

pytestmark = pytest.mark.timeout(60)


def test_a_position_that_retention_has_passed_is_refused(broker, topic):
    position = first_position(broker, topic)
    broker("partition_delete_records", topic, 0, position["offset"] + 7)
    source = open_source(broker, topic, until_end=False)
    with pytest.raises(SourceExpired, match="no longer kept"):
        source.start({0: position})
    source.close()


def test_with_skip_the_gap_is_counted(broker, topic):
    position = first_position(broker, topic)
    begin = position["offset"] + 7
    broker("partition_delete_records", topic, 0, begin)
    publish(broker, topic, edges(5, 60))
    source = open_source(broker, topic, on_expired="skip")
    reading = read(source, {0: position})
    source.close()
    assert reading.src() == list(range(begin, 65))
    assert reading.counts == {"gap": 7}
    assert [gap for arrivals in reading.arrivals for gap in arrivals.gaps] == [(begin - 7, begin)]


def test_the_gap_stands_in_the_report(broker, topic):
    position = first_position(broker, topic)
    begin = position["offset"] + 7
    broker("partition_delete_records", topic, 0, begin)
    front = PartitionState(position, seq=position["offset"])
    state = IngestState(partitions={0: front})
    ingest = Ingest(open_source(broker, topic, on_expired="skip"), OrderConfig(), state=state)
    num_events = sum(len(batch) for batch in ingest)
    assert num_events == 60 - begin
    assert ingest.report()["counts"]["partitions"]["0"]["gaps"] == [[begin - 7, begin]]


def test_retention_that_overtakes_a_running_source_ends_it(broker, topic):
    broker.create(topic, 1)
    publish(broker, topic, edges(3000), batch_size=1000)
    source = open_source(broker, topic, options=SMALL, queue_records=100)
    reading = read(source, stop=after(50))
    broker("partition_delete_records", topic, 0, 2900)
    with pytest.raises(SourceExpired, match="no longer kept"):
        read_on(source, reading)
    source.close()
    assert reading.src() == list(range(len(reading.src())))


def test_if_retention_took_only_the_anchor_reading_continues(broker, topic, caplog):
    position = first_position(broker, topic)
    broker("partition_delete_records", topic, 0, position["offset"])
    source = open_source(broker, topic, until_end=False)
    reading = read(source, {0: position}, stop=after(60 - position["offset"]))
    source.close()
    assert reading.src() == list(range(position["offset"], 60))
    assert "has expired; cannot tell whether the topic is the one" in caplog.text


@pytest.mark.parametrize(
    ("count", "error", "text"),
    [(20, SourceTruncated, "ends at offset 20"), (80, SourceMismatch, "is not the record")],
)
def test_a_recreated_topic_is_refused(broker, topic, count, error, text):
    position = first_position(broker, topic)
    broker("topic_delete", topic)
    broker.create(topic, 1)
    publish(broker, topic, edges(count, 10_000))
    source = open_source(broker, topic, until_end=False)
    with pytest.raises(error, match=text):
        source.start({0: position})
    source.close()


def test_a_topic_with_fewer_partitions_is_refused(broker, topic):
    position = first_position(broker, topic)
    source = open_source(broker, topic)
    with pytest.raises(SourceTruncated, match="partition 3 is gone"):
        source.start({0: position, 3: position})
    source.close()


def test_offsets_that_go_back_are_dropped_and_counted(broker, topic, monkeypatch):
    from kafka import KafkaConsumer

    broker.create(topic, 1)
    publish(broker, topic, edges(100), batch_size=1000)
    poll = KafkaConsumer.poll

    def twice(self, **options):
        return {tp: [*records[:5], *records] for tp, records in poll(self, **options).items()}

    monkeypatch.setattr(KafkaConsumer, "poll", twice)
    reading = read_all(broker, topic)
    assert reading.src() == list(range(100))
    assert reading.counts["repeated"] >= 5


def test_gaps_in_the_offsets_of_a_compacted_topic_are_accepted(broker, topic, monkeypatch):
    from kafka import KafkaConsumer

    broker.create(topic, 1)
    publish(broker, topic, edges(100))
    poll = KafkaConsumer.poll

    def compacted(self, **options):
        found = poll(self, **options).items()
        return {tp: kept for tp, r in found if (kept := [x for x in r if x.offset % 3 == 0])}

    monkeypatch.setattr(KafkaConsumer, "poll", compacted)
    reading = read_all(broker, topic)
    assert reading.src() == list(range(0, 100, 3))


@pytest.mark.timeout(60)
def test_rows_of_a_record_are_resumed_through_a_broker(broker, topic):
    """The position is (offset, row)."""
    import numpy as np
    import pyarrow as pa

    from tgflow.streams.rows.schema import Checks

    count = 70_000
    columns = [pa.array(np.arange(count)), pa.array(np.ones(count, np.int64))]
    batch = pa.RecordBatch.from_arrays([*columns, columns[0]], names=["src", "dst", "t"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    value = sink.getvalue().to_pybytes()
    broker.create(topic, 1)
    publish(broker, topic, [value, value], max_request_size=4 << 20)
    settings = {"codec": "arrow", "checks": Checks(max_record_bytes=4 << 20)}
    whole = read_all(broker, topic, **settings)
    middle = next(a.rows.position for a in whole.arrivals if a.rows.position["row"])
    source = open_source(broker, topic, **settings)
    rest = read(source, {0: middle})
    source.close()
    start = middle["offset"] * count + middle["row"]
    assert rest.src() == whole.src()[start:]
