"""Bad rows of files: each is isolated, with its location, a code and an exact message."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from helpers.effort import cases
from helpers.files import GOOD, HEADER, SCHEMA, flat, poll_on, read
from tgflow.streams import FileSource, StreamError, open_stream
from tgflow.streams.errors import CODES, SourceCorrupt
from tgflow.streams.rows.schema import Checks

AS_TEXT = "pass id_kind='string' to take ids as text"
FINER = "pass tick_unit='ms' to keep it exactly"
MEND = "fix or remove the line"
FINITE = "in float32; features must be finite: fix or drop it"
NO_NAN = f"{FINITE}, or pass fill_missing=0"
FILLED = "every event needs a value: fix or drop it, or pass fill_missing=0"
CLOSED_QUOTE = "text follows a closing quote; write quotes within quotes twice"
CLOSED_LATER = "text follows a closing quote, in a row of 2 lines; write quotes within quotes twice"
OPEN_QUOTE = "a quote opens here that is not closed within max_record_bytes=1048576 or"
NOT_CLOSED = "to the end of the file; close it, or raise the limit"
CUT_SHORT = "it is not CSV in UTF-8, or a copy that was cut short; fetch or convert the file again"
CONVERT = "convert them: tr '\\r' '\\n' < FILE > NEW_FILE"
NO_INTEGER = f"expected an integer; write it as one, or {AS_TEXT}"
SUCH_AS = f"expected an integer such as {{}}; write it as one, or {AS_TEXT}"
NO_TIME = "expected a number of s, or a time such as 2024-05-01 12:00:00"

CSV_ROWS = {
    b"1,2,3": ("schema", f"3 values, expected 5 (src, dst, t, f0, label); {MEND}"),
    b"1,2,3,0.5,0,9": ("schema", f"6 values, expected 5 (src, dst, t, f0, label); {MEND}"),
    b"12.0,2,3,0,0": ("type", f"src is '12.0', {SUCH_AS.format(12)}"),
    b"007,2,3,0,0": ("type", f"src is '007', {SUCH_AS.format(7)}"),
    b"+7,2,3,0,0": ("type", f"src is '+7', {SUCH_AS.format(7)}"),
    b"1, 2,3,0,0": ("type", f"dst is ' 2', {SUCH_AS.format(2)}"),
    b'1,"2 ",3,0,0': ("type", f"dst is '2 ', {SUCH_AS.format(2)}"),
    b"1,-02,3,0,0": ("type", f"dst is '-02', {SUCH_AS.format(-2)}"),
    b"true,2,3,0,0": ("type", f"src is 'true', {NO_INTEGER}"),
    b"1,1e3,3,0,0": ("type", f"dst is '1e3', {SUCH_AS.format(1000)}"),
    b"1,0x10,3,0,0": ("type", f"dst is '0x10', {NO_INTEGER}"),
    b"0x10,2,3,0,0": ("type", f"src is '0x10', {NO_INTEGER}"),
    b"1_000,2,3,0,0": ("type", f"src is '1_000', {NO_INTEGER}"),
    b"1\0,2,3,0,0": ("type", f"src is '1\\x00', {NO_INTEGER}"),
    b"\x1b[2J,2,3,0,0": ("type", f"src is '\\x1b[2J', {NO_INTEGER}"),
    b",2,3,0,0": ("null", "src is empty; every event needs both its nodes"),
    b"-1,2,3,0,0": ("negative_id", f"src is -1; integer ids start at 0: {AS_TEXT}"),
    b"1,9223372036854775808,3,0,0": ("huge_id", f"dst is {2**63}, beyond int64; {AS_TEXT}"),
    b"1,\xff,3,0,0": (
        "encoding",
        "byte 3 of the line (0xff) is not UTF-8; write the file as UTF-8",
    ),
    b"1,2,,0,0": ("null", f"t is empty, {NO_TIME}"),
    b"1,2,soon,0,0": ("time_type", f"t is 'soon', {NO_TIME}"),
    b"1,2,nan,0,0": ("time_type", f"t is 'nan', {NO_TIME}"),
    b"1,2,0x10,0,0": ("time_type", f"t is '0x10', {NO_TIME}"),
    b"1,2,2026-13-01,0,0": ("time_type", f"t is '2026-13-01', {NO_TIME}"),
    b"1,2,4.5,0,0": ("time_precision", f"t is 4.5, between two ticks of 1 s; {FINER}"),
    b"1,2,4e-30,0,0": (
        "time_precision",
        "t is 4e-30, between two ticks of 1 s; write fewer decimals",
    ),
    b"1,2,9223372036854775808,0,0": ("time_range", f"t is {2**63}, beyond int64 ticks of 1 s"),
    b"1,2,-9223372036854775808,0,0": ("time_range", f"t is -{2**63}, beyond int64 ticks of 1 s"),
    b"1,2,1e400,0,0": ("time_range", "t is '1e400', beyond int64 ticks of 1 s"),
    b"1,2,3,,0": ("null", "f0 is empty; " + FILLED),
    b"1,2,3,NA,0": ("null", "f0 is NA; " + FILLED),
    b"1,2,3,big,0": ("type", "f0 is 'big', expected a number"),
    b'1,2,3,"7\n",0': ("type", "f0 is '7\\n', expected a number"),
    b"1,2,3,nan,0": ("nan", f"f0 is nan {NO_NAN}"),
    b"1,2,3,-inf,0": ("inf", f"f0 is -inf {FINITE}"),
    b"1,2,3,1e39,0": ("inf", f"f0 is inf {FINITE}"),
    b"1,2,3,1e400,0": ("inf", f"f0 is inf {FINITE}"),
    b"1,2,3,0,": ("null", "label is empty, expected a whole number"),
    b"1,2,3,0,1.5": ("type", "label is 1.5, expected a whole number"),
    b'1,"2\n1,2,3,0",0': ("schema", f"3 values, expected 5 (src, dst, t, f0, label); {MEND}"),
    b'1,"2\n1,2,3"x,0,0': ("syntax", CLOSED_LATER),
    b'1,"2"0,3,0,0': ("syntax", CLOSED_QUOTE),
    b'1,2,3,"0" ,0': ("syntax", CLOSED_QUOTE),
    b"1,2\r3,4,0,0": ("syntax", "a \\r within the line; end lines with \\n or \\r\\n"),
    b"\xef\xbb\xbf1,2,3,4,5": ("encoding", "the line starts with a byte order mark; remove it"),
}
JSON_GOOD = b'{"src": 1, "dst": 2, "t": 3, "x": [1, 2], "label": 0}'


def json_row(**changes):
    row = {"src": "1", "dst": "2", "t": "3", "x": "[1, 2]", "label": "0"} | changes
    return ("{" + ", ".join(f'"{k}": {v}' for k, v in row.items() if v is not None) + "}").encode()


ONE = "write one object per event"
WIDTH = "expected 2 as in most of the first rows"
JSON_ROWS = {
    b'{"src": 1,': (
        "syntax",
        "not JSON: expecting property name enclosed in double quotes at character 11; " + ONE,
    ),
    JSON_GOOD * 2: ("syntax", f"not JSON: extra data at character 54; {ONE}"),
    b"[1]": ("syntax", f"[1] is not an object; {ONE}"),
    b"7": ("syntax", f"7 is not an object; {ONE}"),
    b"null": ("syntax", f"None is not an object; {ONE}"),  # Arrow reads out of bounds
    JSON_GOOD + b" null {}": ("syntax", f"not JSON: extra data at character 55; {ONE}"),
    json_row(src="1.0"): ("type", f"src is '1.0', {SUCH_AS.format(1)}"),
    json_row(src='"07"'): ("type", f"src is '07', {SUCH_AS.format(7)}"),
    json_row(src="true"): ("type", f"src is 'true', {NO_INTEGER}"),
    json_row(src="[1]"): ("type", "src is [1], expected one value"),
    json_row(src="null"): ("null", "src is missing; every event needs both its nodes"),
    json_row(dst=None): ("null", "dst is missing; every event needs both its nodes"),
    json_row(src=str(2**63)): ("huge_id", f"src is {2**63}, beyond int64; {AS_TEXT}"),
    json_row(src="-3"): ("negative_id", f"src is -3; integer ids start at 0: {AS_TEXT}"),
    json_row(t="3.5"): ("time_precision", f"t is 3.5, between two ticks of 1 s; {FINER}"),
    json_row(t="true"): ("time_type", f"t is 'true', {NO_TIME}"),
    json_row(t='"now"'): ("time_type", f"t is 'now', {NO_TIME}"),
    json_row(t=str(2**63)): ("time_range", f"t is {2**63}, beyond int64 ticks of 1 s"),
    json_row(label="0.5"): ("type", "label is 0.5, expected a whole number"),
    json_row(x="[1]"): ("width", f"x has 1 values, {WIDTH}"),
    json_row(x="[1, 2, 3]"): ("width", f"x has 3 values, {WIDTH}"),
    json_row(x="[1, NaN]"): ("nan", f"x[1] is nan {NO_NAN}"),
    json_row(x="[1e39, 0]"): ("inf", f"x[0] is inf {FINITE}"),
    json_row(x="[1, null]"): ("null", "x holds an empty value; features must be finite"),
    json_row(x='[1, "two"]'): ("type", "x is 'two', expected a number"),
    json_row(x="null"): ("null", "x is missing; every event needs a value"),
    b'{"src": 1, "src": 1, "dst": 2, "t": 3}': ("schema", "the key 'src' is repeated; keep one"),
    b'{"src": \xff1}': (
        "encoding",
        "byte 9 of the line (0xff) is not UTF-8; write the file as UTF-8",
    ),
    b"\xef\xbb\xbf" + JSON_GOOD: ("encoding", "the line starts with a byte order mark; remove it"),
}
TOO_DEEP = "the JSON is nested too deeply, or has a number with thousands of digits; write one flat"


@pytest.mark.parametrize(
    ("ending", "header", "good", "rows", "schema"),
    [
        ("csv", HEADER, GOOD.strip(), CSV_ROWS, SCHEMA),
        ("jsonl", b"", JSON_GOOD, JSON_ROWS, {"features": "x", "label": "label"}),
    ],
)
@pytest.mark.parametrize("num_good", [1, 7, 2000])
def test_each_bad_row_is_isolated_with_its_location_and_message(
    tmp_path, ending, header, good, rows, schema, num_good
):
    path, offsets, data = tmp_path / f"events.{ending}", {}, header
    for row in rows:
        data += (good + b"\n") * num_good
        offsets[row] = len(data)
        data += row + b"\n"
    path.write_bytes(data + good)
    polls = read(FileSource(path, id_kind="int", **schema))
    events, bad = flat(polls)
    assert len(events) == num_good * len(rows) + 1
    found = [row for poll in polls for row in poll.bad()]
    assert {row.origin.raw: (row.code, row.text) for row in found} == rows
    assert {row.origin.raw: row.origin.place["byte"] for row in found} == offsets
    lines = data.split(b"\n")
    assert all(raw.startswith(lines[place["line"] - 1]) for _, _, place, raw in bad)
    assert {row.code for row in found} <= set(CODES)
    assert all(row.text.isprintable() for row in found)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "txt", "csv.gz"])
@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_blank_lines_are_skipped_and_counted(tmp_path, ending, block_bytes):
    name = f"events.{ending}"
    row = {"jsonl": '{"src": 1, "dst": 2, "t": %d}', "tsv": "1\t2\t%d", "txt": "1 2 %d"}
    headers = {"jsonl": "", "txt": "# a comment\n", "tsv": "src\tdst\tt\n"}
    header = headers.get(ending, "src,dst,t\n")
    lines = [row.get(ending, "1,2,%d") % i for i in range(60)]
    for i, blank in ((0, ""), (15, "  "), (15, "\t \r"), (45, "")):
        lines.insert(i, blank)
    lines.insert(30, "x")
    text = (header + "\n".join(lines) + "\n\n \t").encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    source = FileSource(tmp_path / name, block_bytes=block_bytes)
    polls = read(source)
    events, bad = flat(polls)
    assert [event[3] for event in events] == [*range(60)]
    line = text[: text.index(b"x\n")].count(b"\n") + 1
    assert [place["line"] for _, _, place, _ in bad] == [line]
    assert sum(poll.counts.get("blank_line", 0) for poll in polls) == 6
    num = 0
    for poll in polls[:20]:  # each position resumes after its rows
        num += len(poll.events)
        later, _ = flat(read(FileSource(tmp_path / name, block_bytes=block_bytes), poll.position))
        assert [event[3] for event in later] == [*range(num, 60)]


def strict(source, **schema):
    """Return the times of the events before the error that ends a stream, and its text."""
    times = []
    with pytest.raises(StreamError) as caught:
        times.extend(batch_times(source, schema))
    return times, str(caught.value)


def batch_times(source, schema):
    for batch in open_stream(source, **schema):
        yield from batch.t.tolist()


def test_strict_stream_yields_the_rows_before_the_first_bad_one(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(HEADER + GOOD * 1000 + b"-1,x,y,0,0\n" + GOOD)
    message = f"{path}, line 1002: src is -1; integer ids start at 0: {AS_TEXT}"
    assert strict(path, **SCHEMA) == ([3] * 1000, message)
    path.write_bytes(HEADER + GOOD + b"1,2,2,0,0\n")
    late = "tick 2 comes after tick 3; times must not decrease: pass sort=True to read everything"
    assert strict(path) == ([3], f"{path}, line 3: {late} first and sort it by time")
    path.write_bytes(HEADER + GOOD + b"1,2")
    cut = "2 values, expected 5 (src, dst, t, f0, label); the file ends within this line: fetch it"
    assert strict(path) == ([3], f"{path}, line 3: {cut} again, or remove the line")
    path.write_bytes(b"src,dst,t\n12.0,2,3\n")
    first = f"src is '12.0', {SUCH_AS.format(12)}"
    assert strict(path, id_kind="int") == ([], f"{path}, line 2: {first}")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            b'src,"dst"s,t',
            "text follows a closing quote in the header 'src,\"dst\"s,t'; fix the header",
        ),
        (b'src,"dst,t', f"{OPEN_QUOTE} {NOT_CLOSED}"),
        (b"\0" * 200_000, f"the header has NUL bytes: {CUT_SHORT}"),
        (
            b"src," + b"d" * 1_500_000,
            "the header has more than 1,048,576 bytes; leave columns out of the file",
        ),
        (b"src,dst,t\r1,2,3\r4,5,6", f"lines end in \\r alone; {CONVERT}"),
        (b"\x89PNG\r", "byte 1 of the line (0x89) is not UTF-8; write the file as UTF-8"),
    ],
)
def test_unreadable_header_is_refused(tmp_path, header, message):
    path = tmp_path / "events.csv"
    path.write_bytes(header + b"\n1,2,3\n")
    assert strict(path) == ([], f"{path}, line 1: {message}")


def test_unused_columns_may_contain_anything(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t,other\n1,2,3,0x10\n1,2,3,\xff\n1,-2,3,\xff\n")
    events, bad = flat(read(FileSource(path)))
    assert ([row[0] for row in events], [row[0] for row in bad]) == ([0, 1], [2])


@pytest.mark.parametrize(
    "row", [b'{"src": 1, "dst": 2, "t": ' + b"9" * 5000 + b"}", b'{"src": ' + b"[" * 100_000]
)
def test_deeply_nested_json_row_is_a_bad_row(tmp_path, row):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"src": 1, "dst": 2, "t": 3}\n' + row + b"\n")
    times, error = strict(path)
    assert times == [3]
    assert error.startswith(f"{path}, line 2: {TOO_DEEP}")


TABLES = {
    "null time": ({"t": [1, None]}, "t is missing; every event needs a value"),
    "uint64 id": (
        {"src": np.array([1, 2**63], dtype=np.uint64)},
        f"src is {2**63}, beyond int64; {AS_TEXT}",
    ),
    "wide float time": (
        {"t": [1.0, 2.0**60]},
        "t is 1.152921504606847e+18, which float64 cannot hold to the tick; store integers",
    ),
    "wide feature": ({"f0": [0.0, 1e39]}, f"f0 is inf {FINITE}"),
    "bad text": (
        {"src": pa.array([b"ann", b"\xff"]).view(pa.string())},
        "src is not UTF-8; write the file as UTF-8",
    ),
}


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.parametrize("ending", ["table", "parquet", "arrow"])
def test_columnar_formats_isolate_each_row_by_its_number(tmp_path, case, ending):
    columns, text = TABLES[case]
    if (case, ending) == ("bad text", "parquet"):
        return  # Parquet's writer checks texts
    rows = {"src": [1, 2], "dst": [3, 4], "t": [5, 6], "f0": [0.5, 1.0], "label": [0, 1]}
    source = table = pa.table(rows | columns)
    name = "table"
    if ending != "table":
        source = tmp_path / f"events.{ending}"
        name = str(source)
        write = pa.parquet.write_table if ending == "parquet" else pa.feather.write_feather
        write(table, source)
    kind = "string" if case == "bad text" else "int"
    times, error = strict(source, id_kind=kind, **SCHEMA)
    assert (len(times), error) == (1, f"{name}, row 1: {text}")
    ((row, code, place, raw),) = flat(read(FileSource(source, id_kind=kind, **SCHEMA)))[1]
    assert (row, place["row"], code in CODES) == (1, 1, True)
    assert json.loads(raw).keys() == rows.keys()


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"src": [1.5]}, "table, row 0: src is 1.5, expected an integer or a string; " + AS_TEXT),
        ({"src": [True]}, "table, row 0: src is True, expected an integer or a string; " + AS_TEXT),
        ({"t": [[1]]}, "table, row 0: t is of type list<item: int64>, expected numbers"),
        (
            {"f0": ["big"]},
            "table, row 0: f0 is 'big', expected a number; pass categorical='f0' to encode its "
            "categories, or leave it out of the features",
        ),
        ({"label": [[7]]}, "table, row 0: label is of type list<item: int64>, expected numbers"),
    ],
)
def test_column_of_a_wrong_type_is_refused(columns, text):
    rows = {"src": [1], "dst": [3], "t": [5], "f0": [0.5], "label": [0]}
    assert strict(rows | columns, features="f0", label="label") == ([], text)


@pytest.mark.parametrize("ending", cases(["csv", "csv.gz"], ["csv.gz"]))
@pytest.mark.parametrize("block_bytes", cases([1 << 16, 1 << 20], [1 << 16]))
def test_value_of_50_megabytes_is_one_bad_row_in_bounded_memory(tmp_path, ending, block_bytes):
    path = tmp_path / f"events.{ending}"
    data = b"src,dst,t\n1,2,3\n1,2," + b"9" * (50 << 20) + b"\n4,5,6\n"
    path.write_bytes(gzip.compress(data, 1) if ending == "csv.gz" else data)
    source, polls = FileSource(path, block_bytes=block_bytes), []
    before, most = pa.total_allocated_bytes(), 0
    source.start({})
    while 0 not in source.ended():
        polls += source.poll({0}, 5)
        most = max(most, pa.total_allocated_bytes() - before)
    source.close()
    events, bad = flat(polls)
    assert [row[1] for row in events] == [1, 4]
    ((row, code, place, raw),) = bad
    assert (row, code, place["byte"], place["line"]) == (1, "too_large", 16, 3)
    assert raw.startswith(b"1,2,999")
    assert len(raw) <= 1 << 20
    assert most < 32 << 20
    size = f"{(50 << 20) + 5:,} bytes, more than max_record_bytes=1048576"
    assert strict(path)[1] == f"{path}, line 3: the line has {size}"


def test_record_at_the_size_limit_is_accepted_for_any_block_size(tmp_path):
    path = tmp_path / "events.csv"
    lines = [b"%d,2,%s3\n" % (i, b" " * pad) for i, pad in enumerate([0, 30, 31, 32, 2, 90, 1])]
    path.write_bytes(b"src,dst,t\n" + b"".join(lines))
    longest = len(lines[2])
    for block_bytes in (1, 7, 40, 1000):
        source = FileSource(path, checks=Checks(max_record_bytes=longest), block_bytes=block_bytes)
        events, bad = flat(read(source))
        assert [row[0] for row in events] == [0, 1, 2, 4, 6]
        assert [(row, code) for row, code, _, _ in bad] == [(3, "too_large"), (5, "too_large")]


@pytest.mark.parametrize("cut", [10, 5_000, 60_000, None])
def test_damaged_gzip_yields_whole_lines_then_an_error(tmp_path, cut):
    text = "src,dst,t\n" + "".join(f"{i},{i * 7919 % 1000},{i}\n" for i in range(50_000))
    path, data = tmp_path / "events.csv.gz", bytearray(gzip.compress(text.encode()))
    data[-6] ^= 1  # in the checksum, of the file that is not cut
    path.write_bytes(data[:cut])
    times, error = strict(path)
    assert "the compressed data is damaged or cut short after" in error
    assert times == list(range(len(times)))
    if cut == 60_000:
        source, polls = FileSource(path, block_bytes=1 << 14), []
        source.start({})
        with pytest.raises(SourceCorrupt):
            poll_on(source, polls)
        source.close()
        assert len(polls) > 1


def test_all_missing_columns_are_named_with_usual_names(tmp_path):
    path = tmp_path / "pay.csv"
    path.write_text("account,user,Shop,when\n1,2,3,4\n")
    missing = f"{path}: there is no column 'src' or 't'; the columns are account, user, Shop, when"
    meant = "choose with src=... t=...; did you mean src='account'?"
    assert strict(path) == ([], f"{missing}: {meant}")
    _, text = strict(path, src="acount", t="when")
    assert text.endswith("choose with src=...; did you mean src='account'?")
    path.write_text("acount,shopp,tme\n1,2,3\n")
    _, text = strict(path)
    assert text.endswith("did you mean src='acount' dst='shopp' t='tme'?")


def test_feature_type_is_the_majority_of_the_first_rows(tmp_path):
    path = tmp_path / "made.jsonl"
    rows = [{"src": i, "dst": 1, "t": i, "x": [i, i + 1]} for i in range(1, 7)]
    odd = [7, [7], [1, 2, 3], True, [True, 1], None]
    given = [{**rows[0], "x": x} for x in odd] + rows
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    events, bad = flat(read(FileSource(path, features="x")))
    expected = {4: (1, 1)} | {6 + i: (i + 1, i + 2) for i in range(6)}
    assert {number: x for number, *_, x in events} == expected
    assert len(bad) == len(odd) - 1
