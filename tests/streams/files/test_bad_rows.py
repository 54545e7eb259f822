"""Bad rows of files: each is found, alone, in its place, with a code."""

import gzip
import json
import math

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from helpers.effort import cases
from helpers.file_reads import CSV_ROWS, GOOD, HEADER, SCHEMA, flat, read
from tgflow.streams import open_files
from tgflow.streams.errors import (
    CODES,
)
from tgflow.streams.rows.schema import Checks


def test_poison_matrix_csv_isolates_each_row_by_its_byte(tmp_path):
    path, offsets, data = tmp_path / "events.csv", {}, HEADER
    for row in CSV_ROWS:
        data += GOOD * 7
        offsets[row] = len(data)
        data += row + b"\n"
    path.write_bytes(data + GOOD)
    events, bad = flat(read(open_files(path, **SCHEMA)))
    assert len(events) == 7 * len(CSV_ROWS) + 1
    found = {raw: code for _, code, _, raw in bad}
    assert found == CSV_ROWS
    assert {raw: place["byte"] for _, _, place, raw in bad} == offsets
    assert set(found.values()) <= set(CODES)
    lines = data.split(b"\n")
    assert all(lines[place["line"] - 1] == raw for _, _, place, raw in bad)


def test_poison_matrix_a_truncated_last_line_is_a_bad_row(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(HEADER + GOOD + b"1,2")
    events, bad = flat(read(open_files(path, **SCHEMA)))
    assert (len(events), [(row, code, raw) for row, code, _, raw in bad]) == (
        1,
        [(1, "schema", b"1,2")],
    )


def test_poison_matrix_nanoseconds_and_exponents_lose_nothing(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n1,2,1700000000123456789\n1,2,1e3\n1,2,9223372036854775807\n")
    events, _ = flat(read(open_files(path, time_unit="ns")))
    assert [row[3] for row in events] == [1700000000123456789, 1000, 2**63 - 1]


JSON_ROWS = {
    b"": "syntax",
    b'{"src": 1,': "syntax",
    b"[1]": "syntax",
    b"null": "syntax",  # Arrow reads wild memory
    b'{"src": 1, "dst": 2, "t": 3, "x": [1]} null {}': "syntax",
    b"7": "syntax",
    b'{"src": 1.0, "dst": 2, "t": 3, "x": [1]}': "type",
    b'{"src": "7", "dst": 2, "t": 3, "x": [1]}': "type",
    b'{"src": true, "dst": 2, "t": 3, "x": [1]}': "type",
    b'{"src": null, "dst": 2, "t": 3, "x": [1]}': "null",
    b'{"dst": 2, "t": 3, "x": [1]}': "null",
    b'{"src": -1, "dst": 2, "t": 3, "x": [1]}': "negative_id",
    b'{"src": 9223372036854775808, "dst": 2, "t": 3, "x": [1]}': "huge_id",
    b'{"src": 1, "dst": 2, "t": "2026-01-01", "x": [1]}': "time_type",
    b'{"src": 1, "dst": 2, "t": 1.5, "x": [1]}': "time_precision",
    b'{"src": 1, "dst": 2, "t": 1e400, "x": [1]}': "time_range",
    b'{"src": 1, "dst": 2, "t": 3, "x": []}': "width",
    b'{"src": 1, "dst": 2, "t": 3, "x": [1, 2]}': "width",
    b'{"src": 1, "dst": 2, "t": 3, "x": [NaN]}': "nan",
    b'{"src": 1, "dst": 2, "t": 3, "x": [1e39]}': "inf",
    b'{"src": 1, "dst": 2, "t": 3, "x": [null]}': "null",
    b'{"src": 1, "dst": 2, "t": 3, "x": "1"}': "type",
    b'{"src": 1, "src": 1, "dst": 2, "t": 3, "x": [1]}': "schema",
    b'{"src": 1, "dst": 2, "t": 3, "x": [1]} {"src": 1, "dst": 2, "t": 3, "x": [1]}': "syntax",
    b'{"src": 1, "dst": 2, "t": 3, "x": [1], "y": ' + b"[" * 10_000 + b"}": "syntax",
    b'{"src": \xff1, "dst": 2, "t": 3, "x": [1]}': "encoding",
    b'{"src": 1, "dst": 2, "t": 3\0, "x": [1]}': "syntax",
    b'\xef\xbb\xbf{"src": 1, "dst": 2, "t": 3, "x": [1]}': "encoding",
}
JSON_GOOD = b'{"src": 1, "dst": 2, "t": 3, "x": [1]}'


def test_jsonl_isolates_each_row_by_its_byte(tmp_path):
    path, offsets, data = tmp_path / "events.jsonl", {}, b""
    for row in JSON_ROWS:
        data += (JSON_GOOD + b"\n") * 5
        offsets[row] = len(data)
        data += row + b"\n"
    path.write_bytes(data)
    events, bad = flat(read(open_files(path, features="x")))
    assert len(events) == 5 * len(JSON_ROWS)
    assert {raw: code for _, code, _, raw in bad} == JSON_ROWS
    assert {raw: place["byte"] for _, _, place, raw in bad} == offsets


def test_objects_over_two_lines_and_two_on_one_line_are_not_mixed_up(tmp_path):
    path = tmp_path / "events.jsonl"
    two = JSON_GOOD + b" " + JSON_GOOD
    broken = JSON_GOOD.replace(b", ", b",\n", 1)
    path.write_bytes(b"\n".join([JSON_GOOD, two, broken, JSON_GOOD]))
    events, bad = flat(read(open_files(path)))
    assert [row[0] for row in events] == [0, 4]
    assert [row[0] for row in bad] == [1, 2, 3]


def test_unknown_keys_are_refused_if_asked_for(tmp_path):
    path = tmp_path / "events.jsonl"
    extra = JSON_GOOD.replace(b"}", b', "extra": 1}')
    path.write_bytes(b"\n".join([JSON_GOOD, extra, JSON_GOOD]))
    assert len(flat(read(open_files(path, features="x")))[1]) == 0
    source = open_files(path, features="x", checks=Checks(unknown_keys="reject"))
    events, bad = flat(read(source))
    assert ([row[0] for row in events], bad[0][:2]) == ([0, 2], (1, "schema"))


@pytest.mark.parametrize("ending", cases(["csv", "csv.gz"], ["csv.gz"]))
@pytest.mark.parametrize("block_bytes", cases([1 << 16, 1 << 20], [1 << 16]))
def test_a_value_of_50_megabytes_is_one_bad_row_in_bounded_memory(tmp_path, ending, block_bytes):
    path = tmp_path / f"events.{ending}"
    data = b"src,dst,t\n1,2,3\n1,2," + b"9" * (50 << 20) + b"\n4,5,6\n"
    path.write_bytes(gzip.compress(data, 1) if ending == "csv.gz" else data)
    (events, bad), most = flat_with_memory(open_files(path, block_bytes=block_bytes))
    assert [row[1] for row in events] == [1, 4]
    ((row, code, place, raw),) = bad
    assert (row, code, place["byte"], place["line"]) == (1, "too_large", 16, 3)
    assert raw.startswith(b"1,2,999")
    assert len(raw) <= 1 << 20
    assert most < 32 << 20


def flat_with_memory(source):
    before, most = pa.total_allocated_bytes(), 0
    source.start({})
    polls = []
    while 0 not in source.ended():
        polls += source.poll({0}, 5)
        most = max(most, pa.total_allocated_bytes() - before)
    source.close()
    return flat(polls), most


def test_a_record_just_at_the_limit_is_taken_whatever_the_block(tmp_path):
    path = tmp_path / "events.csv"
    lines = [b"%d,2,%s3\n" % (i, b" " * pad) for i, pad in enumerate([0, 30, 31, 32, 2, 90, 1])]
    path.write_bytes(b"src,dst,t\n" + b"".join(lines))
    longest = len(lines[2])
    for block_bytes in (1, 7, 40, 1000):
        source = open_files(path, checks=Checks(max_record_bytes=longest), block_bytes=block_bytes)
        events, bad = flat(read(source))
        assert [row[0] for row in events] == [0, 1, 2, 4, 6]
        assert [(row, code) for row, code, _, _ in bad] == [(3, "too_large"), (5, "too_large")]


@pytest.mark.parametrize("ending", ["parquet", "arrow", "table"])
def test_binary_formats_isolate_each_row_by_its_number(tmp_path, ending):
    columns = {
        "src": [1, -1, None, 4, 5, 6],
        "dst": [1, 2, 3, 4, 5, 6],
        "t": [0.0, 1.0, 2.0, math.nan, 4.5, 5.0],
        "f0": [0, 1, 2, 3, 4, math.inf],
        "label": [0] * 6,
    }
    source = table = pa.table(columns)
    if ending != "table":
        source = tmp_path / f"events.{ending}"
        write = pa.parquet.write_table if ending == "parquet" else pa.feather.write_feather
        write(table, source)
    events, bad = flat(read(open_files(source, **SCHEMA)))
    assert [row[0] for row in events] == [0]
    assert [(row, code) for row, code, _, _ in bad] == [
        (1, "negative_id"),
        (2, "null"),
        (3, "time_type"),
        (4, "time_precision"),
        (5, "inf"),
    ]
    assert [place["row"] for _, _, place, _ in bad] == [1, 2, 3, 4, 5]
    assert json.loads(bad[0][3]) == {"src": -1, "dst": 2, "t": 1.0, "label": 0, "f0": 1.0}


def test_origin_gives_place_and_bytes_of_good_rows_too(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"\xef\xbb\xbfsrc,dst,t\r\n1,2,3\r\nx,2,3\r\n4,5,6")
    origins = [p.rows.origin(i) for p in read(open_files(path)) for i in range(len(p.rows.events))]
    assert [origin.raw for origin in origins] == [b"1,2,3", b"4,5,6"]
    assert [origin.place["byte"] for origin in origins] == [14, 28]
    assert path.read_bytes()[28:] == b"4,5,6"


def test_messages_hold_no_control_characters(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n1,2,3\n\x1b[2J,2,3\n1,2,\x1b]0;x\x07\n")
    (poll,) = read(open_files(path))
    assert len(poll.rows.bad()) == 2
    assert all(row.text.isprintable() for row in poll.rows.bad())
