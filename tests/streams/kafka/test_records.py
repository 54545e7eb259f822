"""Records of every codec become events or bad rows independently, in bounded memory."""

import json
import random
import time
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.kafka_io import CODECS, arrow, arrow_stream, decode, edge, row
from tgflow.streams.errors import CODES
from tgflow.streams.rows.schema import Checks

JSON = {
    '{"src":1,"dst":2,"t":3,"x":[NaN,1]}': "nan",
    '{"src":1,"dst":2,"t":3,"x":[1,2,3]}': "width",
    '{"src":[1],"dst":2,"t":3,"x":[1,2]}': "type",
    '{"src":1,"dst":2,"t":3,"x":[1,2]': "syntax",
    '{"src" :1,"src":1,"dst":2,"t":3,"x":[1,2]}': "schema",
    "[" * 10_000: "syntax",
    "": "syntax",
    "\n": "syntax",
    '{"src":1,"dst":2,"t":3,"x":[1,2],"a":"a\nb"}': "syntax",
    '{"src":1,"dst":2,"t":3,"x":[1,2]}\n{"src":1,"dst":2,"t":3,"x":[1,2]}': "syntax",
    "[1,2,3]": "syntax",
    '{"src":1,"dst":2,"t":3,"x":[1,2]}{"src":1,"dst":2,"t":3,"x":[1,2]}': "syntax",
    '{"dst":2,"t":3,"x":[1,2]}': "null",
    "\ufeff" + '{"src":1,"dst":2,"t":3,"x":[1,2]}': "encoding",
    '{"src":1,"dst":2,"t":3,"x":[1,2]}\x00': "syntax",
    '{"src":1,"dst":2,"t":' + "9" * 5000 + ',"x":[1,2]}': "syntax",
    '{"src":1,"dst":2,"t":3,"x":[1,2]}': None,
    ' { "x" : [ 1 , 2.5e0 ] , "t" : 3 , "src" : 1 , "dst" : 2 } \n': None,
    '{"src":1,"dst":2,"t":3,"x":[1,2],"more":"a:b{[\\"","list":[[1]],"o":{"p":1}}': None,
    '{"src":1,\n"dst":2,"t":3,\n\n"x":[1,2]}': None,
    '{"src":1,"dst":2,"t":3,"x":[1,2],"deep":' + "[" * 1000 + "]" * 1000 + "}": None,
}
CSV = {
    "1,2,3,nan,2": "nan",
    "1,2,3,1": "schema",
    "1,2,3,1,2,3": "schema",
    "": "syntax",
    '1,2,3,1,"2': "syntax",
    "1,2,3\r4,5,6": "syntax",
    "1,2,3,1,2\x00": "type",
    "1,2,3,1,2": None,
    '"1",2,3,1,2': None,
    "1,2,3.0,1,2\r": None,
}
"""Records and their fault; None: the event (1, 2, 3). Odd values are those of test_values.py."""


@pytest.mark.parametrize(("codec", "cases"), [("json", JSON), ("csv", CSV)])
def test_each_record_is_an_event_or_one_row_with_a_code_and_its_place(codec, cases):
    for text, code in cases.items():
        reading = decode([text.encode()], codec)
        assert reading.codes == ([] if code is None else [code]), text
        assert reading.rows[0] == ([(1, 2, 3)] if code is None else []), text
        assert not any("per line" in row.text for row in reading.arrivals[0].bad()), text
        for _, _, origin in reading.bad:
            assert origin.raw == text.encode()
            assert origin.place == {"topic": "edges", "partition": 0, "offset": 10, "row": 0}
            assert len(reading.arrivals[0].bad()[0].text) < 400


@given(st.lists(st.sampled_from(list(JSON)), max_size=30))
def test_json_record_does_not_depend_on_its_neighbors(texts):
    reading = decode([text.encode() for text in texts], "json")
    assert reading.codes == [JSON[text] for text in texts if JSON[text]]
    assert len(reading.src()) == sum(JSON[text] is None for text in texts)


@given(st.lists(st.lists(st.sampled_from(list(CSV)), min_size=1)))
def test_csv_record_of_several_lines_gives_one_row_per_line(records):
    end = '1,2,3,1,"2'  # further lines would be in its quotes
    records = [each[: [*each, end].index(end) + 1] for each in records]
    lines = [line for record in records for line in record]
    reading = decode(["\n".join([*record, ""]).encode() for record in records], "csv")
    assert reading.codes == [CSV[line] for line in lines if CSV[line]]
    assert len(reading.src()) == sum(CSV[line] is None for line in lines)
    for _, _, origin in reading.bad:
        line = records[origin.place["offset"] - 10][origin.place["row"]].encode()
        assert origin.raw in (line, line + b"\n")


@given(st.binary(max_size=200), st.sampled_from(CODECS))
def test_any_bytes_give_an_event_or_a_bad_row(value, codec):
    reading = decode([value, row(codec, 1, 2, 3)], codec)
    assert reading.rows[0][-1] == (1, 2, 3)
    assert set(reading.codes) <= CODES.keys()


@pytest.mark.parametrize(
    ("codec", "value", "text"),
    [
        ("csv", b"5,6,7,8,9", 'ä,"b,c",1'.encode()),
        ("json", b'{"src":5,"dst":6,"t":7,"kind":8,"eid":9}', edge("ä", "b,c", 1)),
        (
            "arrow",
            arrow([5], [6], [7], False, kind=pa.array([8]), eid=pa.array([9])),
            arrow(["ä"], ["b,c"], [1], False),
        ),
    ],
)
def test_labels_event_ids_and_string_ids_are_read(codec, value, text):
    settings = {"label": "kind", "event_id": "eid", "features": ()}
    [arrivals] = decode([value] * 2, codec, **settings).arrivals
    assert arrivals.events.label.tolist() == [8, 8]
    ids = arrivals.events.event_id_hash
    assert (ids.dtype, ids[0]) == (np.int64, ids[1])
    assert decode([text], codec, id_kind="string", features=()).rows[0] == [("ä", "b,c", 1)]


def test_event_ids_may_be_numbers_and_strings_in_one_topic():
    values = [edge(i, id=i if i % 3 else str(i)) for i in range(100)]
    [rows] = decode(values, "json", event_id="id", features=()).arrivals
    texts = [edge(i, id=str(i)) for i in range(100)]
    [others] = decode(texts, "json", event_id="id", features=()).arrivals
    hashes = rows.events.event_id_hash.tolist()
    assert hashes == others.events.event_id_hash.tolist()
    assert len(set(hashes)) == 100


def test_invalid_utf8_makes_a_row_bad():
    settings = {"id_kind": "string", "features": ()}
    assert decode([b'{"src":"a","dst":"b","t":3,"a":"\xff"}'], "json").codes == ["encoding"]
    half = b'{"src":"\\ud800","dst":"b","t":3}'
    assert decode([half], "json", **settings).codes == ["encoding"]
    reading = decode([b"a,b,1\nc\xff,d,2\ne,f,3"], "csv", **settings)
    assert reading.rows[0] == [("a", "b", 1), ("e", "f", 3)]
    assert reading.codes == ["encoding"]
    assert reading.bad[0][2].place["row"] == 1


def test_huge_record_is_not_parsed():
    value = b'{"src":1,"dst":2,"t":3,"x":[1,2],"a":"' + b"a" * (50 << 20) + b'"}'
    tracemalloc.start()
    reading = decode([edge(1, x=[1, 2]), value, edge(2, x=[1, 2])], "json")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reading.codes == ["too_large"]
    assert reading.src() == [1, 2]
    assert peak < 1 << 20


# Arrow


def columns_of(column, options=None):
    batch = pa.RecordBatch.from_arrays([column] * 3, names=["src", "dst", "t"])
    return arrow_stream(batch, options)


def ones(num_rows, kind=np.int8):
    return pa.array(np.ones(num_rows, dtype=kind))


GOOD_ARROW = arrow([1, 2, 3], x=False)
ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")
BAD_ARROW = {
    "wrong schema": (arrow([1, 2], x=False, t=None, dst=None).replace(b"dst", b"dsx"), "schema"),
    "text ids": (arrow(["a", "b"], x=False), "type"),
    "empty": (b"", "syntax"),
    "noise": (random.Random(1).randbytes(500), "syntax"),
    "json": (b'{"src":1,"dst":2,"t":3}', "syntax"),
    "truncated": (GOOD_ARROW[: len(GOOD_ARROW) // 2], "syntax"),
    "truncated body": (GOOD_ARROW[:-40], "syntax"),
    "10^7 rows compressed": (lambda: columns_of(ones(10**7, np.int64), ZSTD), "schema"),
    "run-length": (
        columns_of(
            pa.RunEndEncodedArray.from_arrays(pa.array([10_000_000], pa.int32()), pa.array([1]))
        ),
        "schema",
    ),
    "too many rows": (lambda: columns_of(ones(1_100_000)), "too_large"),
    "dictionary": (
        columns_of(pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array([1, 2]), safe=False)),
        "schema",
    ),
}


@pytest.mark.parametrize("what", BAD_ARROW)
def test_bad_arrow_record_has_a_code_and_takes_bounded_memory(what):
    value, code = BAD_ARROW[what]
    value = value() if callable(value) else value
    before = pa.total_allocated_bytes()
    began = time.monotonic()
    checks = Checks(max_record_bytes=8 << 20)
    reading = decode([GOOD_ARROW, value, GOOD_ARROW], "arrow", features=(), checks=checks)
    assert set(reading.codes) == {code}
    assert reading.src() == [1, 2, 3, 1, 2, 3]
    assert time.monotonic() - began < 2.0
    assert pa.total_allocated_bytes() - before < 64 << 20


@given(st.integers(0, 2000), st.integers(0, 255), st.integers(0, 2000))
def test_damaged_arrow_record_gives_events_or_a_bad_row(at, byte, cut):
    value = bytearray(GOOD_ARROW)
    value[at % len(value)] = byte
    value = bytes(value[: len(value) - cut % 3 * 8])
    reading = decode([value, GOOD_ARROW], "arrow", features=())
    assert reading.src()[-3:] == [1, 2, 3]
    assert set(reading.codes) <= CODES.keys()


def test_arrow_records_of_different_types_and_empty_ones_may_follow_each_other():
    wide = arrow([5], x=False, t=pa.array([7], pa.int32()).to_pylist())
    types = {"src": pa.int16(), "dst": pa.uint8(), "t": pa.float64()}
    values = {name: pa.array([i], kind) for i, (name, kind) in enumerate(types.items(), 6)}
    narrow = arrow_stream(pa.RecordBatch.from_pydict(values))
    bad, empty = arrow([7, -1], x=False), columns_of(ones(0))
    reading = decode([wide, narrow, empty, bad, wide], "arrow", features=())
    assert reading.rows[0] == [(5, 1, 7), (6, 7, 8), (7, 1, 0), (5, 1, 7)]
    assert reading.counts == {"empty": 1}
    assert reading.codes == ["negative_id"]
    assert reading.bad[0][2].place["row"] == 1
    assert json.loads(reading.bad[0][2].raw) == {"src": -1, "dst": 1, "t": 0}
