"""CSV records: one line each, or several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.decoding import decode

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
    ("1,2,3,,2", "type"),
    ("1,2,3,1", "schema"),
    ("1,2,3,1,2,3", "schema"),
    ("", "syntax"),
    ('1,2,3,1,"2', "syntax"),
    ("1,2,3\r4,5,6", "syntax"),
    ("1,2,3,1,2\x00", "type"),
]
GOOD_CSV = ["1,2,3,1,2", '"1",2,3,1,2', "1,2,3.0,1,2\r", "1,2,3,1e0,.5", "1,2,3,1,2\n"]


@pytest.mark.parametrize(("text", "code"), BAD_CSV)
def test_a_bad_line_has_a_code(text, code):
    assert decode([text.encode()], "csv").codes == [code]


@given(st.lists(st.sampled_from([*[t for t, _ in BAD_CSV], *GOOD_CSV]), max_size=30))
def test_what_a_record_gives_does_not_depend_on_its_neighbors(texts):
    codes = dict(BAD_CSV)
    reading = decode([text.encode() for text in texts], "csv")
    assert reading.codes == [codes[text] for text in texts if text in codes]
    assert len(reading.src()) == sum(text not in codes for text in texts)


@given(st.lists(st.lists(st.sampled_from([*[t for t, _ in BAD_CSV], *GOOD_CSV[:3]]), min_size=1)))
def test_a_record_of_several_lines_is_as_many_rows(records):
    codes = dict(BAD_CSV)
    lines = [line for record in records for line in record]
    reading = decode(["\n".join([*record, ""]).encode() for record in records], "csv")
    assert reading.codes == [codes[line] for line in lines if line in codes]
    assert len(reading.src()) == sum(line not in codes for line in lines)
    for _, _, origin in reading.bad:
        record = records[origin.place["offset"] - 10]
        line = record[origin.place["row"]].encode()
        assert origin.raw in (line, line + b"\n")


def test_fractions_of_a_second_lose_no_digit():
    times = {"1700000000.123456789": 1700000000123456789, "3": 3 * 10**9, "1e-9": 1}
    settings = {"features": (), "tick_unit": "ns"}
    found = decode([f"1,2,{t}".encode() for t in times], "csv", **settings).rows[0]
    assert [t for _, _, t in found] == list(times.values())
    assert decode([b"1,2,1.1000000000000000001"], "csv", **settings).codes == ["time_precision"]


def test_bytes_that_are_not_utf8_make_a_line_bad():
    settings = {"id_kind": "string", "features": ()}
    reading = decode([b"a,b,1\nc\xff,d,2\ne,f,3"], "csv", **settings)
    assert reading.rows[0] == [("a", "b", 1), ("e", "f", 3)]
    assert reading.codes == ["encoding"]
    assert reading.bad[0][2].place["row"] == 1
