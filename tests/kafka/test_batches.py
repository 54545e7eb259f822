"""Batches taken apart by us, against kafka-python's own records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka_help import edges, publish, read_all

from tgflow.streams.kafka.batches import DamagedBatchError, _OneRecord
from tgflow.streams.kafka.fetched import taken_apart

pytestmark = pytest.mark.timeout(60)
maybe_bytes = st.none() | st.binary(max_size=200)
records = st.lists(
    st.tuples(
        st.integers(1, 300),  # how far the offset goes on
        st.integers(0, 2**40),
        maybe_bytes,
        maybe_bytes,
        st.lists(st.tuples(st.text(max_size=3), maybe_bytes), max_size=2),
    ),
    min_size=1,
    max_size=40,
)


def built(rows, compression=0):
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, -1, 1 << 20)
    offset = -1
    for step, timestamp, key, value, headers in rows:
        offset += step
        builder.append(offset, timestamp=timestamp, key=key, value=value, headers=headers)
    return bytes(builder.build())


@given(records, st.sampled_from([0, 1]))
def test_a_batch_gives_the_records_of_kafka_python(rows, compression):
    data = built(rows, compression)
    theirs = list(DefaultRecordBatch(data))
    ours, repeated = taken_apart(list(_OneRecord(DefaultRecordBatch(data))), 0)
    assert ours.offsets.tolist() == [record.offset for record in theirs]
    assert list(ours.values) == [record.value for record in theirs]
    assert repeated == 0
    for i, record in enumerate(theirs):
        anchor = ours.anchor(i)
        assert (anchor.offset, anchor.t) == (record.offset, record.timestamp)
        assert anchor == anchor.of(record.offset, record.key, record.timestamp, record.value)


@given(records, st.integers(0, 1 << 20), st.integers(1, 255))
def test_a_damaged_batch_is_an_error_or_records(rows, at, change):
    data = bytearray(built(rows))
    at = 61 + at % (len(data) - 61)
    data[at] ^= change
    [record] = _OneRecord(DefaultRecordBatch(bytes(data)))
    try:
        offsets, values, _ = record.value.take_apart()
    except DamagedBatchError:
        return
    assert len(offsets) == len(values) == len(rows)


@given(records, st.integers(0, 5000))
def test_what_stands_before_the_place_in_a_batch_is_left_out(rows, start):
    [record] = _OneRecord(DefaultRecordBatch(built(rows)))
    ours, repeated = taken_apart([record], start)
    offsets = [r.offset for r in DefaultRecordBatch(built(rows))]
    assert ours.offsets.tolist() == [offset for offset in offsets if offset >= start]
    assert repeated == (len(rows) if record.offset < start else 0)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_without_the_private_parts_records_come_one_by_one(
    shared_broker, topic, monkeypatch, compression
):
    shared_broker.create(topic, 1)
    publish(shared_broker, topic, edges(500), compression_type=compression)
    fast = read_all(shared_broker, topic)
    monkeypatch.delattr(DefaultRecordBatch, "records_count")
    slow = read_all(shared_broker, topic)
    assert fast.src() == slow.src() == list(range(500))
    assert fast.positions == slow.positions
