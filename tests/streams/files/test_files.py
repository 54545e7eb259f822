"""Files as a source: every bad row in its place, the same rows whatever the blocks, and resume."""

import bz2
import gzip
import json
import math
import threading
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from tgflow.streams import StreamError, open_files, open_stream
from tgflow.streams.errors import (
    CODES,
    SourceCorrupt,
    SourceExpired,
    SourceMismatch,
    SourceTruncated,
)
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.rows.limits import Checks

GOOD = b"1,2,3,0.5,0\n"
HEADER = b"src,dst,t,f0,label\n"
SCHEMA = {"features": ["f0"], "label": "label"}


def read(source, position=None):
    """Return all arrivals, in polls, from a position on."""
    source.start({} if position is None else {0: position})
    try:
        polls = []
        while 0 not in source.ended():
            polls += source.poll({0}, 5)
        return polls
    finally:
        source.close()


def flat(polls):
    """Return the events with their numbers, and the bad rows with theirs and their places."""
    events, bad, first = [], [], 0
    for poll in polls:
        index = range(poll.rows.num_rows) if poll.rows.index is None else poll.rows.index.tolist()
        columns = poll.rows.events
        rows = zip(
            columns.src.to_pylist(),
            columns.dst.to_pylist(),
            columns.t.tolist(),
            [()] * len(columns) if columns.x is None else map(tuple, columns.x.tolist()),
            strict=True,
        )
        events += [(first + i, *row) for i, row in zip(index, rows, strict=True)]
        bad += [
            (first + b.index, b.code, dict(b.origin.place), b.origin.raw) for b in poll.rows.bad()
        ]
        assert len(poll.rows.events) + len(poll.rows.bad()) == poll.rows.num_rows
        first += poll.rows.num_rows
    return events, bad


# --- which rows are bad, and where they stand ------------------------------------------------

CSV_ROWS = {
    b"1,2,3": "schema",
    b"1,2,3,0.5,0,9": "schema",
    b"": "syntax",
    b"   ": "syntax",
    b"12.0,2,3,0,0": "type",
    b"true,2,3,0,0": "type",
    b"0x10,2,3,0,0": "type",
    b"1_000,2,3,0,0": "type",
    b"1\0,2,3,0,0": "type",
    b",2,3,0,0": "null",
    b"-1,2,3,0,0": "negative_id",
    b"9223372036854775808,2,3,0,0": "huge_id",
    b"1,\xff,3,0,0": "encoding",
    b"1,2,,0,0": "null",
    b"1,2,nan,0,0": "time_type",
    b"1,2,2026-01-01T00:00:00,0,0": "time_type",
    b"1,2,4.5,0,0": "time_precision",
    b"1,2,9223372036854775808,0,0": "time_range",
    b"1,2,-9223372036854775808,0,0": "time_range",
    b"1,2,1e400,0,0": "time_range",
    b"1,2,3,,0": "type",
    b"1,2,3,big,0": "type",
    b"1,2,3,nan,0": "nan",
    b"1,2,3,-inf,0": "inf",
    b"1,2,3,1e39,0": "inf",
    b"1,2,3,1e400,0": "inf",
    b"1,2,3,0,0.5": "type",
    b"1,2,3,0,": "null",
    b'1,"2,3,0,0': "syntax",
    b"1,2\r3,4,0,0": "syntax",
    b"\xef\xbb\xbf1,2,3,4,5": "encoding",
}


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


def test_r6_jsonl_isolates_each_row_by_its_byte(tmp_path):
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


def test_r6_objects_over_two_lines_and_two_on_one_line_are_not_mixed_up(tmp_path):
    path = tmp_path / "events.jsonl"
    two = JSON_GOOD + b" " + JSON_GOOD
    broken = JSON_GOOD.replace(b", ", b",\n", 1)
    path.write_bytes(b"\n".join([JSON_GOOD, two, broken, JSON_GOOD]))
    events, bad = flat(read(open_files(path)))
    assert [row[0] for row in events] == [0, 4]
    assert [row[0] for row in bad] == [1, 2, 3]


def test_r6_unknown_keys_are_refused_if_asked_for(tmp_path):
    path = tmp_path / "events.jsonl"
    extra = JSON_GOOD.replace(b"}", b', "extra": 1}')
    path.write_bytes(b"\n".join([JSON_GOOD, extra, JSON_GOOD]))
    assert len(flat(read(open_files(path, features="x")))[1]) == 0
    source = open_files(path, features="x", checks=Checks(unknown_keys="reject"))
    events, bad = flat(read(source))
    assert ([row[0] for row in events], bad[0][:2]) == ([0, 2], (1, "schema"))


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize("block_bytes", [1 << 16, 1 << 20])
def test_r6_a_value_of_50_megabytes_is_one_bad_row_in_bounded_memory(tmp_path, ending, block_bytes):
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


def test_r6_a_record_just_at_the_limit_is_taken_whatever_the_block(tmp_path):
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


def test_r11_messages_hold_no_control_characters(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n1,2,3\n\x1b[2J,2,3\n1,2,\x1b]0;x\x07\n")
    (poll,) = read(open_files(path))
    assert len(poll.rows.bad()) == 2
    assert all(row.text.isprintable() for row in poll.rows.bad())


# --- the same rows whatever the blocks, and from every position ------------------------------

lines = st.sampled_from(
    [
        *[b"%d,%d,%d,0.25,1" % (i, i + 1, i * 7 % 10) for i in range(10)],
        *CSV_ROWS,
        b"5,6,7,0x1,0",
        b'"7",8,"9",1,0',
        b'1,"2',
        b'3",4,5,6',
        b"9" * 70,
    ]
)


@st.composite
def texts(draw):
    """Return the bytes of a CSV file with good and bad lines and several kinds of line ends."""
    body = draw(st.lists(lines, max_size=30))
    ends = draw(st.lists(st.sampled_from([b"\n", b"\r\n"]), min_size=30, max_size=30))
    text = b"".join(line + end for line, end in zip(body, ends, strict=False))
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return mark + HEADER + (text if draw(st.booleans()) else text.removesuffix(b"\n"))


CHECKS = Checks(max_record_bytes=60)


@settings(max_examples=tries(100))
@given(texts(), st.integers(1, 300), st.sampled_from(["int", "string"]))
@pytest.mark.parametrize("ending", ["csv", "csv.gz", "csv.bz2"])
def test_any_block_size_gives_the_same_arrivals(scratch, ending, text, block_bytes, ids):
    path = scratch / f"events.{ending}"
    pack = {"csv": bytes, "csv.gz": gzip.compress, "csv.bz2": bz2.compress}[ending]
    path.write_bytes(pack(text))
    schema = SCHEMA | {"id_kind": ids, "checks": CHECKS}
    whole = read(open_files(path, **schema))
    pieces = read(open_files(path, block_bytes=block_bytes, **schema))
    assert flat(pieces) == flat(whole)
    num_lines = len(text.removesuffix(b"\n").split(b"\n")) - 1
    assert sum(poll.rows.num_rows for poll in whole) == num_lines
    for _, _, place, raw in flat(whole)[1]:
        assert text[place["byte"] :].startswith(raw)
        assert text[: place["byte"]].count(b"\n") == place["line"] - 1


@settings(max_examples=tries(40))
@given(texts(), st.integers(1, 80))
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_resume_from_every_position_gives_the_rest(scratch, ending, text, block_bytes):
    path = scratch / f"events.{ending}"
    path.write_bytes(gzip.compress(text) if ending == "csv.gz" else text)
    schema = SCHEMA | {"id_kind": "int", "checks": CHECKS, "block_bytes": block_bytes}
    polls = read(open_files(path, **schema))
    for i, poll in enumerate(polls):
        position = json.loads(json.dumps(poll.rows.position))
        assert flat(read(open_files(path, **schema), position)) == flat(polls[i + 1 :])


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_event_ids_of_files_drop_what_comes_twice(tmp_path, ending):
    names = ["a", "b", "a", "", "c", "b"]
    rows = [{"src": i, "dst": 1, "t": i, "key": name} for i, name in enumerate(names)]
    path = tmp_path / f"events.{ending}"
    if ending == "csv":
        lines = [f"{i},1,{i},{name}\n" for i, name in enumerate(names)]
        path.write_text("".join(["src,dst,t,key\n", *lines]))
    elif ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    found = open_files(path, event_id="key")
    ingest = Ingest(found, OrderConfig(dedup_window=10))
    times = [t for events in ingest for t in events.t.tolist()]
    assert times == [0, 1, 4]
    counts = ingest.report()["counts"]
    assert (counts["duplicate"], counts["malformed"]) == (2, 1)


def test_an_event_id_that_is_no_column_or_no_id_is_an_error(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("src,dst,t\n1,2,3\n")
    with pytest.raises(StreamError, match=r"no column 'key'.*choose with event_id="):
        open_files(path, event_id="key")
    table = {"src": [1], "dst": [2], "t": [3], "key": [0.5]}
    [arrivals] = read(open_files(table, event_id="key"))
    [bad] = arrivals.rows.bad()
    assert (bad.code, len(arrivals.rows.events)) == ("type", 0)
    assert bad.text == "key is of type double; event ids are texts or integers"


def table_of(num_rows):
    t = np.arange(num_rows)
    return pa.table({"src": t % 7, "dst": t % 5, "t": t})


@pytest.mark.parametrize("ending", ["parquet", "arrow", "stream"])
def test_resume_binary_files_from_every_position(tmp_path, ending, monkeypatch):
    monkeypatch.setattr("tgflow.streams.files.table.BATCH_ROWS", 100)
    path, table = tmp_path / "events", table_of(1000)
    if ending == "parquet":
        pa.parquet.write_table(table, path, row_group_size=250)
    elif ending == "arrow":
        pa.feather.write_feather(table, path, chunksize=250)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, 250)
    kind = "parquet" if ending == "parquet" else "arrow"
    polls = read(open_files(path, format=kind))
    assert [row[3] for row in flat(polls)[0]] == list(range(1000))
    assert len(polls) > 5
    for i, poll in enumerate(polls):
        rest = flat(read(open_files(path, format=kind), poll.rows.position))
        assert rest == flat(polls[i + 1 :])


def test_resume_a_table_in_memory():
    table = table_of(200_000)
    first, *rest = read(open_files(table))
    assert flat(read(open_files(table), first.rows.position)) == flat(rest)
    with pytest.raises(SourceTruncated, match="it has 10 rows, but had 200000 when it was read"):
        read(open_files(table_of(10)), first.rows.position)


# --- files that change -----------------------------------------------------------------------


def csv_of(first, last):
    return b"".join(b"%d,2,%d\n" % (i, i) for i in range(first, last))


@pytest.fixture
def half_read(tmp_path):
    """Return a file of which some blocks have been read, its bytes, and the position."""
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n" + csv_of(0, 30_000))
    polls = read(open_files(path, block_bytes=100_000))
    return path, path.read_bytes(), polls[1].rows.position


def test_an_appended_file_goes_on(half_read):
    path, data, position = half_read
    end = read(open_files(path))[-1].rows.position
    path.write_bytes(data + csv_of(30_000, 30_010))
    assert [row[1] for row in flat(read(open_files(path), end))[0]] == list(range(30_000, 30_010))
    rest = flat(read(open_files(path), position))[0]
    assert rest[-1][1] == 30_009


@pytest.mark.parametrize("added", [b"\n7,8,9\n", b"\r\n7,8,9\n"])
def test_a_last_line_without_end_may_get_one_later(tmp_path, added):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n1,2,3\n4,5,6")
    poll = read(open_files(path))[-1]
    path.write_bytes(path.read_bytes() + added)
    ((_, *event),), _ = flat(read(open_files(path), poll.rows.position))
    assert event == [7, 8, 9, ()]
    path.write_bytes(b"src,dst,t\n1,2,3\n4,5,67\n")
    with pytest.raises(SourceMismatch, match="line 3: the line was read while it was being writt"):
        read(open_files(path), poll.rows.position)


def test_a_changed_file_is_a_mismatch(half_read):
    path, data, position = half_read
    assert position["byte"] > 150_000
    changed = bytearray(data)
    changed[position["byte"] - 10] ^= 1
    path.write_bytes(changed)
    with pytest.raises(SourceMismatch, match="is not what was read there; it is another file"):
        open_files(path).start({0: position})


def test_a_shorter_file_is_truncated(half_read):
    path, data, position = half_read
    for size in (position["byte"] - 1, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(SourceTruncated, match=rf"has {size} bytes, but had {len(data)} when"):
            open_files(path).start({0: position})


def test_a_compressed_file_that_changed_is_noticed(tmp_path):
    path = tmp_path / "events.csv.gz"
    data = b"src,dst,t\n" + csv_of(0, 30_000)
    path.write_bytes(gzip.compress(data, 0))
    position = read(open_files(path, block_bytes=100_000))[1].rows.position
    path.write_bytes(gzip.compress(data + csv_of(0, 5), 0))
    assert len(flat(read(open_files(path), position))[0]) > 10_000
    path.write_bytes(gzip.compress(data[:1000] + b"9" * (len(data) - 1000) + b"\n", 0))
    with pytest.raises(SourceMismatch):
        open_files(path).start({0: position})
    path.write_bytes(gzip.compress(data[:100_000], 0) + bytes(300_000))
    with pytest.raises((SourceTruncated, SourceCorrupt)):
        open_files(path).start({0: position})


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_changed_binary_file_is_noticed(tmp_path, ending):
    path = tmp_path / f"events.{ending}"
    write = pa.parquet.write_table if ending == "parquet" else pa.feather.write_feather
    write(table_of(70_000), path)
    position = read(open_files(path))[0].rows.position
    write(table_of(70_000).slice(1), path)
    with pytest.raises((SourceMismatch, SourceTruncated)):
        open_files(path).start({0: position})
    write(table_of(90_000), path)
    with pytest.raises((SourceMismatch, SourceTruncated)):
        open_files(path).start({0: position})


def write_parts(folder, *numbers):
    folder.mkdir(exist_ok=True)
    for i in numbers:
        (folder / f"part-{i}.csv").write_bytes(b"src,dst,t\n" + csv_of(i * 10, i * 10 + 10))


def test_a_folder_goes_on_with_files_that_sort_after(tmp_path):
    folder = tmp_path / "parts"
    write_parts(folder, 1, 2, 9)
    polls = read(open_files(folder))
    assert len(polls) == 3
    write_parts(folder, 10, 11)
    late = flat(read(open_files(folder), polls[-1].rows.position))[0]
    assert [row[1] for row in late] == list(range(100, 120))
    (folder / "part-1.csv").unlink()
    middle = flat(read(open_files(folder), polls[1].rows.position))[0]
    assert [row[1] for row in middle] == [*range(90, 120)]


def test_a_folder_grows_while_it_is_read(tmp_path):
    folder = tmp_path / "parts"
    write_parts(folder, 1)
    source = open_files(folder)
    write_parts(folder, 0, 2)  # part-0 sorts before, and is not taken
    assert [row[1] for row in flat(read(source))[0]] == list(range(10, 30)) != []


def test_files_that_are_gone_or_come_before_are_refused(tmp_path):
    folder = tmp_path / "parts"
    write_parts(folder, 1, 2)
    position = read(open_files(folder))[-1].rows.position
    write_parts(folder, 0)
    with pytest.raises(SourceMismatch, match=r"2 files come before 'part-2.csv', where 1 "):
        open_files(folder).start({0: position})
    (folder / "part-0.csv").unlink()
    (folder / "part-2.csv").unlink()
    with pytest.raises(SourceExpired, match=r"'part-2.csv' is gone"):
        open_files(folder).start({0: position})
    listed = [folder / "part-1.csv"]
    with pytest.raises(SourceExpired, match=r"file 2, 'part-2.csv', is not there any more"):
        open_files(listed).start({0: position})
    with pytest.raises(SourceMismatch, match=r"file 1 was 'part-2.csv'; give the same files"):
        open_files(listed).start({0: position | {"file": 0}})


def test_a_gzip_bomb_is_refused(tmp_path):
    path = tmp_path / "events.csv.gz"
    path.write_bytes(gzip.compress(b"src,dst,t\n" + b"1,2,3\n" * 100_000))
    assert len(flat(read(open_files(path)))[0]) == 100_000
    with pytest.raises(
        StreamError, match=r"more than 500000 bytes of text; if it should, decompress it first"
    ):
        read(open_files(path, max_file_bytes=500_000))


def test_damaged_data_ends_the_source_after_the_rows_before_it(tmp_path):
    path = tmp_path / "events.csv.gz"
    data = gzip.compress(b"src,dst,t\n" + csv_of(0, 50_000))
    path.write_bytes(data[: len(data) // 2])
    source = open_files(path, block_bytes=1 << 14)
    source.start({})
    polls = []
    with pytest.raises(SourceCorrupt, match="damaged or cut short after"):
        poll_on(source, polls)
    assert [row[1] for row in flat(polls)[0]] == list(range(len(flat(polls)[0])))
    assert len(polls) > 1
    source.close()


def poll_on(source, polls):
    while 0 not in source.ended():
        polls += source.poll({0}, 5)


# --- the source itself -----------------------------------------------------------------------


def test_a_paused_partition_keeps_what_it_has(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n" + csv_of(0, 100))
    source = open_files(path)
    assert (source.partitions(), source.look_for_partitions(), source.ended()) == ([0], [], set())
    source.start({})
    assert source.poll(set(), 1) == []
    polls = []
    poll_on(source, polls)
    assert len(flat(polls)[0]) == 100
    assert (source.poll({0}, 0), source.ended(), source.progress()) == ([], {0}, 1.0)
    source.close()
    assert (source.lag(), source.counters(), source.committed({})) == ({}, {}, None)


def test_closing_stops_the_thread(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n" + csv_of(0, 50_000))
    before = threading.active_count()
    source = open_files(path, block_bytes=1000)
    source.start({})
    assert source.poll({0}, 5)
    source.close()
    source.close()
    assert threading.active_count() == before
    assert len(flat(read(source))[0]) == 50_000, "it can be started again"


def test_a_bad_first_row_does_not_decide_what_the_stream_is(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n12.0,1,2\n1,2\n\xff\n1,2,3\n")
    source = open_files(path)
    assert source.id_kind == "int"
    assert [code for _, code, _, _ in flat(read(source))[1]] == ["type", "schema", "encoding"]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'oops\n{"src": "a"}\n{"src": "a", "dst": "b", "t": 1, "x": [1, 2]}\n')
    source = open_files(path, features="x", id_kind="string")
    assert source.x_dim == 2
    assert len(flat(read(source))[1]) == 2


def test_the_strict_reader_gives_the_rows_before_the_first_bad_one(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n" + csv_of(0, 1000) + b"-1,x,y\n" + csv_of(1000, 1010))
    good = []
    with pytest.raises(StreamError, match=r"line 1002: src is -1; integer ids start at 0"):
        good += [len(batch) for batch in open_stream(path)]
    assert [row[0] for row in flat(read(open_files(path)))[1]] == [1000]


@given(
    st.lists(
        st.one_of(
            st.integers(-(2**63) + 1, 2**63 - 1).map(str),
            st.decimals(-(10**10), 10**10, places=9).map("{:f}".format),
            st.integers(-(10**9), 10**9).map("{:e}".format),
        ),
        max_size=8,
    )
)
def test_times_never_lose_a_digit(scratch, texts):
    path = scratch / "times.csv"
    path.write_text("src,dst,t\n" + "".join(f"1,2,{text}\n" for text in texts))
    source = open_files(path, time_unit="s", tick_unit="ns")
    events, bad = flat(read(source))
    found = dict.fromkeys(range(len(texts))) | {row[0]: row[3] for row in events}
    for i, text in enumerate(texts):
        exact = Decimal(text) * 10**9
        fits = exact == exact.to_integral_value() and abs(exact) < 2**63
        assert found[i] == (int(exact) if fits else None)
    assert len(bad) == sum(value is None for value in found.values())
