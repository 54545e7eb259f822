"""From records to arrivals: every codec, every rule, and that neighbors do not matter."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka_help import Reading, edge

from tgflow.streams.errors import CODES
from tgflow.streams.kafka import KafkaConfig
from tgflow.streams.kafka.chunk import Chunk, new_records
from tgflow.streams.kafka.cursor import Anchor, Cursor
from tgflow.streams.kafka.records import MAX_ROWS, RecordDecoder
from tgflow.streams.rows.checks import Checks

pytestmark = pytest.mark.timeout(60)


def config(codec, **settings):
    settings = {"time_unit": "s", "features": ["x[2]"]} | settings
    return KafkaConfig(url="kafka://h:1/edges", codec=codec, **settings)


def record(value, offset):
    return SimpleNamespace(value=value, key=None, offset=offset, timestamp=offset + 1000)


def decode(values, codec, skip=0, **settings):
    """Return what a chunk of records gives."""
    polled = [record(value, 10 + i) for i, value in enumerate(values)]
    cursor = Cursor(9).after(Anchor.from_record(polled[-1])) if values else Cursor(10)
    chunk = Chunk(0, new_records(polled, 10), cursor, {})
    reading = Reading()
    for arrivals in RecordDecoder(config(codec, **settings)).arrivals(chunk, skip):
        reading.add(arrivals)
    return reading


def arrow(src, dst=None, t=None, x=None, **columns):
    """Return a record of rows; a column that is None is left out."""
    n = len(src)
    found = {
        "src": pa.array(src),
        "dst": pa.array([1] * n if dst is None else dst),
        "t": pa.array([0] * n if t is None else t),
    }
    lists = [[0.5, 1.5]] * n if x is None else x
    found["x"] = pa.array(lists, pa.list_(pa.float32(), 2)) if lists is not False else None
    found |= columns
    batch = pa.RecordBatch.from_pydict({k: v for k, v in found.items() if v is not None})
    return arrow_stream(batch)


def arrow_stream(batch, options=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def row(codec, src, dst, t, x=(0.5, 1.5)):
    """Return one row as a record of each codec."""
    if codec == "json":
        return json.dumps({"src": src, "dst": dst, "t": t, "x": list(x)}).encode()
    if codec == "csv":
        return ",".join(str(v) for v in (src, dst, t, *x)).encode()
    return arrow([src], [dst], [t], [list(x)])


CODECS = ("json", "csv", "arrow")


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_the_same_events(codec):
    rows = [(i, i % 7, 3 * i, (i / 2, -float(i))) for i in range(100)]
    reading = decode([row(codec, *r) for r in rows], codec)
    assert reading.rows[0] == [r[:3] for r in rows]
    assert reading.bad == []
    x = np.concatenate([arrivals.events.x for arrivals in reading.arrivals])
    assert x.dtype == np.float32
    assert x.tolist() == [list(r[3]) for r in rows]
    assert reading.positions[0]["offset"] == 110


@pytest.mark.parametrize("codec", CODECS)
def test_labels_ids_and_event_ids(codec):
    settings = {"label": "kind", "event_id": "eid", "features": ()}
    if codec == "csv":
        values = [b"5,6,7,8,9"] * 2
    elif codec == "json":
        values = [b'{"src":5,"dst":6,"t":7,"kind":8,"eid":9}'] * 2
    else:
        values = [arrow([5], [6], [7], False, kind=pa.array([8]), eid=pa.array([9]))] * 2
    [arrivals] = decode(values, codec, **settings).arrivals
    assert arrivals.events.label.tolist() == [8, 8]
    ids = arrivals.event_ids
    assert ids.dtype == np.int64
    assert ids[0] == ids[1]
    other = decode(
        [value.replace(b"\x09", b"\x04").replace(b"9", b"4") for value in values], codec, **settings
    )
    assert codec == "arrow" or other.arrivals[0].event_ids[0] != ids[0]


@pytest.mark.parametrize("codec", ["json", "csv", "arrow"])
def test_string_ids(codec):
    values = {
        "json": ['{"src":"ä","dst":"b,c","t":1}'.encode()],
        "csv": ['ä,"b,c",1'.encode()],
        "arrow": [arrow(["ä"], ["b,c"], [1], False)],
    }[codec]
    reading = decode(values, codec, id_kind="string", features=())
    assert reading.rows[0] == [("ä", "b,c", 1)]
    assert decode([edge("")], "json", id_kind="string", features=()).codes == ["null"]


INT64 = 2**63 - 1
BAD_JSON = [
    # R1: features that are no finite float32
    ('{"src":1,"dst":2,"t":3,"x":[NaN,1]}', "nan"),
    ('{"src":1,"dst":2,"t":3,"x":[Infinity,1]}', "inf"),
    ('{"src":1,"dst":2,"t":3,"x":[-Infinity,1]}', "inf"),
    ('{"src":1,"dst":2,"t":3,"x":[1e39,1]}', "inf"),
    ('{"src":1,"dst":2,"t":3,"x":[1e400,1]}', "inf"),
    ('{"src":1,"dst":2,"t":3,"x":[1]}', "width"),
    ('{"src":1,"dst":2,"t":3,"x":[1,2,3]}', "width"),
    ('{"src":1,"dst":2,"t":3,"x":["1",2]}', "type"),
    ('{"src":1,"dst":2,"t":3,"x":[true,2]}', "type"),
    ('{"src":1,"dst":2,"t":3,"x":1}', "type"),
    ('{"src":1,"dst":2,"t":3,"x":null}', "null"),
    # R2: ids
    ('{"src":-1,"dst":2,"t":3,"x":[1,2]}', "negative_id"),
    ('{"src":1,"dst":9223372036854775808,"t":3,"x":[1,2]}', "huge_id"),
    ('{"src":12.0,"dst":2,"t":3,"x":[1,2]}', "type"),
    ('{"src":true,"dst":2,"t":3,"x":[1,2]}', "type"),
    ('{"src":"7","dst":2,"t":3,"x":[1,2]}', "type"),
    ('{"src":null,"dst":2,"t":3,"x":[1,2]}', "null"),
    ('{"src":[1],"dst":2,"t":3,"x":[1,2]}', "type"),
    # R3: times
    ('{"src":1,"dst":2,"t":9223372036854775808,"x":[1,2]}', "time_range"),
    ('{"src":1,"dst":2,"t":-9223372036854775809,"x":[1,2]}', "time_range"),
    ('{"src":1,"dst":2,"t":NaN,"x":[1,2]}', "time_type"),
    ('{"src":1,"dst":2,"t":1e400,"x":[1,2]}', "time_range"),
    ('{"src":1,"dst":2,"t":"2024-01-01T00:00:00Z","x":[1,2]}', "time_type"),
    ('{"src":1,"dst":2,"t":"3","x":[1,2]}', "time_type"),
    ('{"src":1,"dst":2,"t":null,"x":[1,2]}', "null"),
    ('{"src":1,"dst":2,"t":true,"x":[1,2]}', "time_type"),
    ('{"src":1,"dst":2,"t":1.5,"x":[1,2]}', "time_precision"),
    ('{"src":1,"dst":2,"t":[1],"x":[1,2]}', "time_type"),
    # R6: what is no object
    ('{"src":1,"dst":2,"t":3,"x":[1,2]', "syntax"),
    ('{"src":1,"src":1,"dst":2,"t":3,"x":[1,2]}', "schema"),
    ('{"src" :1,"src":1,"dst":2,"t":3,"x":[1,2]}', "schema"),
    ('{"src":1,"dst":2,"t":3,"x":[1,2],"a":{"b":1,"b":2}}', "schema"),
    ("[" * 10_000, "syntax"),
    ('{"src":1,"dst":2,"t":3,"x":[1,2],"deep":' + "[" * 9 + "]" * 9 + "}", "syntax"),
    ("", "syntax"),
    (" ", "syntax"),
    ("null", "syntax"),
    ("[1,2,3]", "syntax"),
    ("7", "syntax"),
    ('{"src":1,"dst":2,"t":3,"x":[1,2]}{"src":1,"dst":2,"t":3,"x":[1,2]}', "syntax"),
    ('{"dst":2,"t":3,"x":[1,2]}', "schema"),
    ("\ufeff" + '{"src":1,"dst":2,"t":3,"x":[1,2]}', "encoding"),
    ('{"src":1,"dst":2,"t":3,"x":[1,2]}\x00', "syntax"),
    ('{"src":1,"dst":2,"t":' + "9" * 5000 + ',"x":[1,2]}', "syntax"),
]
GOOD_JSON = [
    '{"src":1,"dst":2,"t":3,"x":[1,2]}',
    ' { "x" : [ 1 , 2.5e0 ] , "t" : 3 , "src" : 1 , "dst" : 2 } \n',
    '{"src":1,"dst":2,"t":3,"x":[1,2],"more":"a:b{[\\"","list":[[1]],"o":{"p":1}}',
    '{"src":1,"dst":2,"t":3.0,"x":[1,2]}',
    '{"src":1,"dst":2,"t":3e0,"x":[1,2]}',
    '{"src":1,"dst":2,"t":3,"x":[1,2],"\\u00e4":"\\ud83d\\ude00"}',
]


@pytest.mark.parametrize(("text", "code"), BAD_JSON, ids=[f"{t[:50]}" for t, _ in BAD_JSON])
def test_r1_r2_r3_r6_bad_json_has_a_code(text, code):
    reading = decode([text.encode()], "json")
    assert reading.codes == [code]
    assert code in CODES
    [(_, _, origin)] = reading.bad
    assert origin.raw == text.encode()
    assert origin.place == {"topic": "edges", "partition": 0, "offset": 10, "row": 0}
    assert len(reading.arrivals[0].bad[0].text) < 400


@pytest.mark.parametrize("text", GOOD_JSON)
def test_good_json(text):
    assert decode([text.encode()], "json").rows[0] == [(1, 2, 3)]


def test_r6_bytes_that_are_not_utf8():
    bad = b'{"src":1,"dst":2,"t":3,"x":[1,2],"a":"\xff"}'
    assert decode([bad], "json").codes == ["encoding"]
    half = b'{"src":"\\ud800","dst":"b","t":3}'
    assert decode([half], "json", id_kind="string", features=()).codes == ["encoding"]


def test_r6_a_huge_record_is_not_even_parsed():
    value = b'{"src":1,"dst":2,"t":3,"x":[1,2],"a":"' + b"a" * (50 << 20) + b'"}'
    tracemalloc.start()
    reading = decode([edge(1, x=[1, 2]), value, edge(2, x=[1, 2])], "json")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reading.codes == ["too_large"]
    assert reading.src() == [1, 2]
    assert peak < 1 << 20


@given(st.lists(st.sampled_from([*[t for t, _ in BAD_JSON], *GOOD_JSON]), max_size=30))
def test_what_a_json_record_gives_does_not_depend_on_its_neighbors(texts):
    codes = dict(BAD_JSON)
    reading = decode([text.encode() for text in texts], "json")
    assert reading.codes == [codes[text] for text in texts if text in codes]
    assert len(reading.src()) == sum(text not in codes for text in texts)


def test_json_without_orjson(monkeypatch):
    from tgflow.streams.kafka.codecs import json as codec

    monkeypatch.setattr(codec, "_fastest_loads", lambda: codec._strict_loads)
    for text, code in BAD_JSON:
        assert decode([text.encode()], "json").codes == [code]
    for text in GOOD_JSON:
        assert decode([text.encode()], "json").rows[0] == [(1, 2, 3)]


def test_fractions_of_a_second_lose_no_digit():
    times = ["1700000000.123456789", "1700000000.1", "3", "-0.000000001", "1e-9", "12e1"]
    values = [f'{{"src":1,"dst":2,"t":{t}}}'.encode() for t in times]
    settings = {"features": (), "tick_unit": "ns"}
    expected = [1700000000123456789, 1700000000100000000, 3 * 10**9, -1, 1, 120 * 10**9]
    assert [t for _, _, t in decode(values, "json", **settings).rows[0]] == expected
    values = [f"1,2,{t}".encode() for t in times]
    assert [t for _, _, t in decode(values, "csv", **settings).rows[0]] == expected
    long = b'{"src":1,"dst":2,"t":1.1000000000000000001}'
    assert decode([long], "json", **settings).codes == ["time_precision"]
    assert decode([b"1,2,1.1000000000000000001"], "csv", **settings).codes == ["time_precision"]


def test_unknown_keys_may_be_refused():
    value = edge(1, x=[1, 2], more=3)
    checks = Checks(unknown_keys="reject")
    assert decode([value], "json").codes == []
    assert decode([value, edge(1, x=[1, 2])], "json", checks=checks).codes == ["schema"]
    extra = arrow([1], more=pa.array([1]))
    assert decode([extra, arrow([2])], "arrow", checks=checks).codes == ["schema"]


def test_limits():
    checks = Checks(max_node_id=10, max_abs=2.0)
    values = [edge(10, x=[1, 2]), edge(11, x=[1, 2]), edge(1, x=[1, -2.5])]
    assert decode(values, "json", checks=checks).codes == ["huge_id", "range"]


BAD_CSV = [
    ("-1,2,3,1,2", "negative_id"),
    ("12.0,2,3,1,2", "type"),
    ("0x10,2,3,1,2", "type"),
    ("1_0,2,3,1,2", "type"),
    (",2,3,1,2", "null"),
    ("9223372036854775808,2,3,1,2", "huge_id"),
    ("1,2,9223372036854775808,1,2", "time_range"),
    ("1,2,1e400,1,2", "time_range"),
    ("1,2,nan,1,2", "time_type"),
    ("1,2,2024-01-01,1,2", "time_type"),
    ("1,2,1.5,1,2", "time_precision"),
    ("1,2,,1,2", "null"),
    ("1,2,3,nan,2", "nan"),
    ("1,2,3,1e39,2", "inf"),
    ("1,2,3,1e400,2", "inf"),
    ("1,2,3,-inf,2", "inf"),
    ("1,2,3,a,2", "type"),
    ("1,2,3,,2", "null"),
    ("1,2,3,1", "schema"),
    ("1,2,3,1,2,3", "schema"),
    ("", "syntax"),
    ('1,2,3,1,"2', "syntax"),
    ("1,2,3\r4,5,6", "syntax"),
    ("1,2,3,1,2\x00", "type"),
]
GOOD_CSV = ["1,2,3,1,2", '"1",2,3,1,2', "1,2,3.0,1,2\r", "1,2,3,1e0,.5", "1,2,3,1,2\n"]


@pytest.mark.parametrize(("text", "code"), BAD_CSV)
def test_bad_csv_has_a_code(text, code):
    assert decode([text.encode()], "csv").codes == [code]


@given(st.lists(st.sampled_from([*[t for t, _ in BAD_CSV], *GOOD_CSV]), max_size=30))
def test_what_a_csv_record_gives_does_not_depend_on_its_neighbors(texts):
    codes = dict(BAD_CSV)
    reading = decode([text.encode() for text in texts], "csv")
    assert reading.codes == [codes[text] for text in texts if text in codes]
    assert len(reading.src()) == sum(text not in codes for text in texts)


@given(st.lists(st.lists(st.sampled_from([*[t for t, _ in BAD_CSV], *GOOD_CSV[:3]]), min_size=1)))
def test_csv_records_of_several_lines(records):
    codes = dict(BAD_CSV)
    lines = [line for record in records for line in record]
    reading = decode(["\n".join([*record, ""]).encode() for record in records], "csv")
    assert reading.codes == [codes[line] for line in lines if line in codes]
    assert len(reading.src()) == sum(line not in codes for line in lines)
    for _, _, origin in reading.bad:
        record = records[origin.place["offset"] - 10]
        line = record[origin.place["row"]].encode()
        assert origin.raw in (line, line + b"\n")


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
def test_r10_bad_arrow_has_a_code_and_bounded_memory(what):
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


def test_r10_an_arrow_record_without_rows_is_counted():
    empty = small_rows(0)
    reading = decode([empty, GOOD_ARROW], "arrow", features=())
    assert reading.counts == {"empty": 1}
    assert reading.src() == [1, 2, 3]


@given(st.integers(0, 2000), st.integers(0, 255), st.integers(0, 2000))
def test_r10_damaged_arrow_is_an_event_or_a_bad_row(at, byte, cut):
    value = bytearray(GOOD_ARROW)
    value[at % len(value)] = byte
    value = bytes(value[: len(value) - cut % 3 * 8])
    reading = decode([value, GOOD_ARROW], "arrow", features=())
    assert reading.src()[-3:] == [1, 2, 3]
    assert set(reading.codes) <= CODES.keys()


def test_arrow_rows_of_different_types_follow_each_other():
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


def test_r10_large_records_are_split_and_resumed_in_their_middle():
    count = MAX_ROWS + 1000
    values = [arrow(range(count), x=False), arrow([-5, *range(20)], x=False)]
    settings = {"features": (), "checks": Checks(max_record_bytes=16 << 20)}
    whole = decode(values, "arrow", **settings)
    assert len(whole.arrivals) == 2
    position = whole.arrivals[0].position
    assert (position["offset"], position["row"]) == (10, MAX_ROWS)
    assert position["anchor"] == 10
    cursor = Cursor.from_position(position)
    rest = decode(values, "arrow", skip=cursor.row, **settings)
    assert rest.src() == whole.src()[MAX_ROWS:]
    assert rest.codes == whole.codes == ["negative_id"]
    assert [o.place for _, _, o in rest.bad] == [o.place for _, _, o in whole.bad]
    assert rest.arrivals[0].origin(0).place == {
        "topic": "edges", "partition": 0, "offset": 10, "row": MAX_ROWS,
    }  # fmt: skip


def test_origins_of_good_rows_name_their_record():
    values = [edge(0, x=[1, 2]), b"{", edge(2, x=[1, 2])]
    [arrivals] = decode(values, "json").arrivals
    assert arrivals.index.tolist() == [0, 2]
    assert arrivals.origin(1).raw == values[2]
    assert arrivals.origin(1).place["offset"] == 12


@given(st.binary(max_size=200), st.sampled_from(CODECS))
def test_r6_any_bytes_are_an_event_or_a_bad_row(value, codec):
    reading = decode([value, row(codec, 1, 2, 3)], codec)
    assert reading.rows[0][-1] == (1, 2, 3)
    assert set(reading.codes) <= CODES.keys()
