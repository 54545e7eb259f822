"""Corrupted fetches, and records that kafka-python cannot unpack."""

import pytest

from helpers.kafka_io import SMALL, Reading, edges, fill, open_source, publish, read
from tgflow.streams.errors import SourceCorrupt
from tgflow.testing.broker import MockBroker

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def shared_broker():
    """Return a separate broker: a list of many topics would also be a large chunk."""
    with MockBroker() as broker:
        yield broker


def flip_large(times):
    """Return a function that flips one byte in the middle of large chunks, `times` times."""
    left = [times]

    def damage(data):
        if len(data) > 3000 and left[0] > 0:
            left[0] -= 1
            data = bytearray(data)
            data[len(data) // 2] ^= 0x55
        return bytes(data)

    return damage


def test_corrupt_fetch_is_retried(broker, topic, proxy):
    fill(broker, topic, 1000, batch_size=16_000)
    proxy.damage = flip_large(2)
    source = open_source(broker, topic, servers=[proxy.server], options=SMALL)
    reading = read(source)
    source.close()
    assert reading.src() == list(range(1000))
    assert source.counters()["corrupt_reads"] >= 1
    assert source.counters()["rebuilds"] >= 1


def test_persistent_corruption_ends_the_source_and_skips_nothing(broker, topic, proxy):
    fill(broker, topic, 200)
    publish(broker, topic, edges(1000, 200), batch_size=60_000)
    proxy.damage = flip_large(10**9)
    source = open_source(broker, topic, servers=[proxy.server])
    reading = Reading()
    with pytest.raises(SourceCorrupt, match="were damaged 5 times"):
        read(source, into=reading)
    source.close()
    done = reading.src()
    assert done == list(range(len(done)))  # nothing was skipped


def test_exception_while_unpacking_never_hangs(broker, topic, monkeypatch):
    """kafka-python raises such an exception once, and loops forever in the next poll."""
    from kafka.record.default_records import DefaultRecordBatch

    fill(broker, topic, 100)
    validate, calls = DefaultRecordBatch.validate_crc, []

    def sometimes(self):
        calls.append(1)
        return len(calls) > 3 and validate(self)

    monkeypatch.setattr(DefaultRecordBatch, "validate_crc", sometimes)
    source = open_source(broker, topic)
    reading = read(source)
    source.close()
    assert reading.src() == list(range(100))
    assert source.counters()["corrupt_reads"] == 3
