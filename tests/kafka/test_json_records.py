"""JSON records: one object each, and what is wrong with those that are none."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.decoding import decode
from helpers.kafka_io import edge
from tgflow.streams.errors import CODES
from tgflow.streams.rows.schema import Checks

BAD_JSON = [
    # features that are no finite float32
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
    # ids
    ('{"src":-1,"dst":2,"t":3,"x":[1,2]}', "negative_id"),
    ('{"src":1,"dst":9223372036854775808,"t":3,"x":[1,2]}', "huge_id"),
    ('{"src":12.0,"dst":2,"t":3,"x":[1,2]}', "type"),
    ('{"src":true,"dst":2,"t":3,"x":[1,2]}', "type"),
    ('{"src":"7","dst":2,"t":3,"x":[1,2]}', "type"),
    ('{"src":null,"dst":2,"t":3,"x":[1,2]}', "null"),
    ('{"src":[1],"dst":2,"t":3,"x":[1,2]}', "type"),
    # times
    ('{"src":1,"dst":2,"t":9223372036854775808,"x":[1,2]}', "time_range"),
    ('{"src":1,"dst":2,"t":-9223372036854775809,"x":[1,2]}', "time_range"),
    ('{"src":1,"dst":2,"t":NaN,"x":[1,2]}', "time_type"),
    ('{"src":1,"dst":2,"t":1e400,"x":[1,2]}', "time_range"),
    ('{"src":1,"dst":2,"t":"2024-01-01T00:00:00Z","x":[1,2]}', "time_type"),
    ('{"src":1,"dst":2,"t":null,"x":[1,2]}', "null"),
    ('{"src":1,"dst":2,"t":true,"x":[1,2]}', "time_type"),
    ('{"src":1,"dst":2,"t":1.5,"x":[1,2]}', "time_precision"),
    ('{"src":1,"dst":2,"t":[1],"x":[1,2]}', "time_type"),
    # what is no object
    ('{"src":1,"dst":2,"t":3,"x":[1,2]', "syntax"),
    ('{"src":1,"src":1,"dst":2,"t":3,"x":[1,2]}', "schema"),
    ('{"src" :1,"src":1,"dst":2,"t":3,"x":[1,2]}', "schema"),
    ("[" * 10_000, "syntax"),
    ("", "syntax"),
    (" ", "syntax"),
    ("\n", "syntax"),
    ('{"src":1,"dst":2,"t":3,"x":[1,2],"a":"a\nb"}', "syntax"),
    ('{"src":1,"dst":2,"t":3,"x":[1,2]}\n{"src":1,"dst":2,"t":3,"x":[1,2]}', "syntax"),
    ("null", "syntax"),
    ("[1,2,3]", "syntax"),
    ("7", "syntax"),
    ('{"src":1,"dst":2,"t":3,"x":[1,2]}{"src":1,"dst":2,"t":3,"x":[1,2]}', "syntax"),
    ('{"dst":2,"t":3,"x":[1,2]}', "null"),
    ("\ufeff" + '{"src":1,"dst":2,"t":3,"x":[1,2]}', "encoding"),
    ('{"src":1,"dst":2,"t":3,"x":[1,2]}\x00', "syntax"),
    ('{"src":1,"dst":2,"t":' + "9" * 5000 + ',"x":[1,2]}', "syntax"),
]
GOOD_JSON = [
    '{"src":1,"dst":2,"t":3,"x":[1,2]}',
    ' { "x" : [ 1 , 2.5e0 ] , "t" : 3 , "src" : 1 , "dst" : 2 } \n',
    '{"src":1,"dst":2,"t":3,"x":[1,2],"more":"a:b{[\\"","list":[[1]],"o":{"p":1}}',
    '{"src":1,\n"dst":2,"t":3,\n\n"x":[1,2]}',
    '{"src":1,"dst":2,"t":"3","x":[1,2]}',
    '{"src":1,"dst":2,"t":3,"x":[1,2],"deep":' + "[" * 1000 + "]" * 1000 + "}",
    '{"src":1,"dst":2,"t":3.0,"x":[1,2]}',
    '{"src":1,"dst":2,"t":3e0,"x":[1,2]}',
    '{"src":1,"dst":2,"t":3,"x":[1,2],"\\u00e4":"\\ud83d\\ude00"}',
]


@pytest.mark.parametrize(("text", "code"), BAD_JSON, ids=[f"{t[:50]}" for t, _ in BAD_JSON])
def test_a_bad_record_is_one_row_with_a_code_and_its_place(text, code):
    reading = decode([text.encode()], "json")
    assert reading.codes == [code]
    assert code in CODES
    [(_, _, origin)] = reading.bad
    assert origin.raw == text.encode()
    assert origin.place == {"topic": "edges", "partition": 0, "offset": 10, "row": 0}
    assert len(reading.arrivals[0].rows.bad()[0].text) < 400


@pytest.mark.parametrize("text", GOOD_JSON)
def test_a_good_record_is_one_event(text):
    assert decode([text.encode()], "json").rows[0] == [(1, 2, 3)]


def test_bytes_that_are_not_utf8_make_a_record_bad():
    bad = b'{"src":1,"dst":2,"t":3,"x":[1,2],"a":"\xff"}'
    assert decode([bad], "json").codes == ["encoding"]
    half = b'{"src":"\\ud800","dst":"b","t":3}'
    assert decode([half], "json", id_kind="string", features=()).codes == ["encoding"]


def test_a_huge_record_is_not_even_parsed():
    value = b'{"src":1,"dst":2,"t":3,"x":[1,2],"a":"' + b"a" * (50 << 20) + b'"}'
    tracemalloc.start()
    reading = decode([edge(1, x=[1, 2]), value, edge(2, x=[1, 2])], "json")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reading.codes == ["too_large"]
    assert reading.src() == [1, 2]
    assert peak < 1 << 20


@given(st.lists(st.sampled_from([*[t for t, _ in BAD_JSON], *GOOD_JSON]), max_size=30))
def test_what_a_record_gives_does_not_depend_on_its_neighbors(texts):
    codes = dict(BAD_JSON)
    reading = decode([text.encode() for text in texts], "json")
    assert reading.codes == [codes[text] for text in texts if text in codes]
    assert len(reading.src()) == sum(text not in codes for text in texts)


def test_fractions_of_a_second_lose_no_digit():
    times = ["1700000000.123456789", "1700000000.1", "3", "-0.000000001", "1e-9", "12e1"]
    values = [f'{{"src":1,"dst":2,"t":{t}}}'.encode() for t in times]
    settings = {"features": (), "tick_unit": "ns"}
    expected = [1700000000123456789, 1700000000100000000, 3 * 10**9, -1, 1, 120 * 10**9]
    assert [t for _, _, t in decode(values, "json", **settings).rows[0]] == expected
    long = b'{"src":1,"dst":2,"t":1.1000000000000000001}'
    assert decode([long], "json", **settings).codes == ["time_precision"]


def test_unknown_keys_may_be_refused():
    value = edge(1, x=[1, 2], more=3)
    checks = Checks(unknown_keys="reject")
    assert decode([value], "json").codes == []
    assert decode([value, edge(1, x=[1, 2])], "json", checks=checks).codes == ["schema"]


def test_event_ids_may_be_numbers_and_texts_in_one_topic():
    values = [edge(i, id=i if i % 3 else str(i)) for i in range(100)]
    [rows] = decode(values, "json", event_id="id", features=()).arrivals
    texts = [edge(i, id=str(i)) for i in range(100)]
    [others] = decode(texts, "json", event_id="id", features=()).arrivals
    assert rows.rows.event_ids.tolist() == others.rows.event_ids.tolist()
    assert len(set(rows.rows.event_ids.tolist())) == 100
    assert decode([edge(1, id=1.5)], "json", event_id="id", features=()).codes == ["type"]


def test_limits():
    checks = Checks(max_node_id=10, max_abs=2.0)
    values = [edge(10, x=[1, 2]), edge(11, x=[1, 2]), edge(1, x=[1, -2.5])]
    assert decode(values, "json", checks=checks).codes == ["huge_id", "range"]
