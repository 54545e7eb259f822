"""Arrow records: a stream of many rows each, bounded before it is read."""

from __future__ import annotations

import json
import random
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.decoding import arrow, arrow_stream, decode
from tgflow.streams.errors import CODES
from tgflow.streams.kafka.codecs import MAX_ROWS
from tgflow.streams.kafka.consumer import Cursor
from tgflow.streams.rows.schema import Checks


def zeros_compressed(num_rows):
    column = pa.array(np.zeros(num_rows, dtype=np.int64))
    batch = pa.RecordBatch.from_arrays([column] * 3, names=["src", "dst", "t"])
    return arrow_stream(batch, pa.ipc.IpcWriteOptions(compression="zstd"))


def dictionary_out_of_range():
    column = pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array([1, 2]), safe=False)
    batch = pa.RecordBatch.from_arrays(
        [column, pa.array([1, 1]), pa.array([1, 1])], names=["src", "dst", "t"]
    )
    return arrow_stream(batch)


def small_rows(num_rows):
    column = pa.array(np.ones(num_rows, dtype=np.int8))
    return arrow_stream(pa.RecordBatch.from_arrays([column] * 3, names=["src", "dst", "t"]))


def run_length():
    column = pa.RunEndEncodedArray.from_arrays(pa.array([10_000_000], pa.int32()), pa.array([1]))
    return arrow_stream(pa.RecordBatch.from_arrays([column] * 3, names=["src", "dst", "t"]))


GOOD_ARROW = arrow([1, 2, 3], x=False)
BAD_ARROW = {
    "wrong schema": (arrow([1, 2], x=False, t=None, dst=None).replace(b"dst", b"dsx"), "schema"),
    "text ids": (arrow(["a", "b"], x=False), "type"),
    "empty": (b"", "syntax"),
    "noise": (random.Random(1).randbytes(500), "syntax"),
    "json": (b'{"src":1,"dst":2,"t":3}', "syntax"),
    "truncated": (GOOD_ARROW[: len(GOOD_ARROW) // 2], "syntax"),
    "truncated body": (GOOD_ARROW[:-40], "syntax"),
    "10^7 rows compressed": (zeros_compressed(10**7), "schema"),
    "run-length": (run_length(), "schema"),
    "too many rows": (small_rows(1_100_000), "too_large"),
    "dictionary": (dictionary_out_of_range(), "schema"),
}


@pytest.mark.parametrize("what", BAD_ARROW)
def test_a_bad_record_has_a_code_and_takes_bounded_memory(what):
    value, code = BAD_ARROW[what]
    before = pa.total_allocated_bytes()
    began = time.monotonic()
    reading = decode(
        [GOOD_ARROW, value, GOOD_ARROW],
        "arrow",
        features=(),
        checks=Checks(max_record_bytes=8 << 20),
    )
    assert set(reading.codes) == {code}
    assert reading.src() == [1, 2, 3, 1, 2, 3]
    assert time.monotonic() - began < 2.0
    assert pa.total_allocated_bytes() - before < 64 << 20


def test_a_record_without_rows_is_counted():
    empty = small_rows(0)
    reading = decode([empty, GOOD_ARROW], "arrow", features=())
    assert reading.counts == {"empty": 1}
    assert reading.src() == [1, 2, 3]


@given(st.integers(0, 2000), st.integers(0, 255), st.integers(0, 2000))
def test_a_damaged_record_gives_events_or_a_bad_row(at, byte, cut):
    value = bytearray(GOOD_ARROW)
    value[at % len(value)] = byte
    value = bytes(value[: len(value) - cut % 3 * 8])
    reading = decode([value, GOOD_ARROW], "arrow", features=())
    assert reading.src()[-3:] == [1, 2, 3]
    assert set(reading.codes) <= CODES.keys()


def test_rows_of_different_types_follow_each_other():
    wide = arrow([5], x=False, t=pa.array([7], pa.int32()).to_pylist())
    narrow = arrow_stream(
        pa.RecordBatch.from_pydict(
            {
                "src": pa.array([6], pa.int16()),
                "dst": pa.array([1], pa.uint8()),
                "t": pa.array([8.0]),
            }
        )
    )
    bad = arrow([7, -1], x=False)
    reading = decode([wide, narrow, bad, wide], "arrow", features=())
    assert reading.rows[0] == [(5, 1, 7), (6, 1, 8), (7, 1, 0), (5, 1, 7)]
    assert reading.codes == ["negative_id"]
    assert reading.bad[0][2].place["row"] == 1
    assert json.loads(reading.bad[0][2].raw) == {"src": -1, "dst": 1, "t": 0}


def test_large_records_are_split_and_resumed_in_their_middle():
    count = MAX_ROWS + 1000
    values = [arrow(range(count), x=False), arrow([-5, *range(20)], x=False)]
    settings = {"features": (), "checks": Checks(max_record_bytes=16 << 20)}
    whole = decode(values, "arrow", **settings)
    assert len(whole.arrivals) == 2
    position = whole.arrivals[0].rows.position
    assert (position["offset"], position["row"]) == (10, MAX_ROWS)
    assert position["anchor"] == 10
    cursor = Cursor.from_position(position)
    rest = decode(values, "arrow", skip=cursor.row, **settings)
    assert rest.src() == whole.src()[MAX_ROWS:]
    assert rest.codes == whole.codes == ["negative_id"]
    assert [o.place for _, _, o in rest.bad] == [o.place for _, _, o in whole.bad]
    assert rest.arrivals[0].rows.origin(0).place == {
        "topic": "edges", "partition": 0, "offset": 10, "row": MAX_ROWS,
    }  # fmt: skip


def test_unknown_columns_may_be_refused():
    extra = arrow([1], more=pa.array([1]))
    checks = Checks(unknown_keys="reject")
    assert decode([extra, arrow([2])], "arrow", checks=checks).codes == ["schema"]
