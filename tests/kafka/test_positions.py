"""Positions that the topic no longer holds, or holds otherwise."""

from __future__ import annotations

import pytest

from helpers.kafka_io import (
    SMALL,
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


def test_a_position_that_retention_has_passed_is_refused_or_with_skip_a_gap(broker, topic):
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


def test_retention_that_overtakes_a_running_source_ends_it(broker, topic):
    fill(broker, topic, 3000, batch_size=1000)
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
    ("count", "partition", "error", "text"),
    [
        (20, 0, SourceTruncated, "ends at offset 20"),
        (80, 0, SourceMismatch, "is not the record"),
        (80, 3, SourceTruncated, "partition 3 is gone"),
    ],
)
def test_a_recreated_topic_is_refused(broker, topic, count, partition, error, text):
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

    def odd(self, **options):  # compacted, and handed out twice
        found = poll(self, **options).items()
        kept = {tp: [x for x in records if x.offset % 3 == 0] for tp, records in found}
        return {tp: [*records[:5], *records] for tp, records in kept.items() if records}

    monkeypatch.setattr(KafkaConsumer, "poll", odd)
    reading = read_all(broker, topic)
    assert reading.src() == list(range(0, 100, 3))
    assert reading.counts["repeated"] >= 5
