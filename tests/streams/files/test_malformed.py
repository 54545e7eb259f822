"""Every malformed row ends the stream with one exact message, after the rows before it."""

import contextlib
import gzip

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from helpers.effort import slow
from tgflow.streams import StreamError, open_stream

HEADER = "src,dst,t,f0,label\n"
GOOD = "1,2,3,0.5,0\n"
AS_TEXT = "pass id_kind='string' to take ids as text"
FINER = "pass tick_unit='ms' to keep it exactly"
MEND = "mend or remove the line"

CSV_ROWS = {
    "1,2,3": f"3 values, expected 5 (src, dst, t, f0, label); {MEND}",
    "1,2,3,0.5,0,9": f"6 values, expected 5 (src, dst, t, f0, label); {MEND}",
    "": "the line is blank; remove it",
    "   ": "the line is blank; remove it",
    "12.0,2,3,0,0": f"src is '12.0', expected an integer; write it as one, or {AS_TEXT}",
    "1,1e3,3,0,0": f"dst is '1e3', expected an integer; write it as one, or {AS_TEXT}",
    "1,0x10,3,0,0": f"dst is '0x10', expected an integer; write it as one, or {AS_TEXT}",
    "1_000,2,3,0,0": f"src is '1_000', expected an integer; write it as one, or {AS_TEXT}",
    "1\0,2,3,0,0": f"src is '1\\x00', expected an integer; write it as one, or {AS_TEXT}",
    "\x1b[2J,2,3,0,0": f"src is '\\x1b[2J', expected an integer; write it as one, or {AS_TEXT}",
    ",2,3,0,0": "src is empty; every event needs both its nodes",
    "-1,2,3,0,0": f"src is -1; integer ids start at 0: {AS_TEXT}",
    "1,9223372036854775808,3,0,0": f"dst is 9223372036854775808, beyond int64; {AS_TEXT}",
    "1,2,,0,0": "t is empty, expected a number of s",
    "1,2,soon,0,0": "t is 'soon', expected a number of s",
    "1,2,nan,0,0": "t is 'nan', expected a number of s",
    "1,2,0x10,0,0": "t is '0x10', expected a number of s",
    "1,2,2026-01-01,0,0": "t is '2026-01-01', expected a number of s",
    "1,2,4.5,0,0": f"t is 4.5, between two ticks of 1 s; {FINER}",
    "1,2,4e-30,0,0": "t is 4e-30, between two ticks of 1 s; write times as whole numbers",
    "1,2,9223372036854775808,0,0": "t is 9223372036854775808, beyond int64 ticks of 1 s",
    "1,2,1e400,0,0": "t is '1e400', beyond int64 ticks of 1 s",
    "1,2,2,0,0": "tick 2 comes after tick 3; times must not decrease: "
    "pass sort=True to read everything first and sort it by time",
    "1,2,3,,0": "f0 is '', expected a number",
    "1,2,3,big,0": "f0 is 'big', expected a number",
    "1,2,3,nan,0": "f0 is nan in float32; features must be finite: mend or drop it",
    "1,2,3,-inf,0": "f0 is -inf in float32; features must be finite: mend or drop it",
    "1,2,3,1e39,0": "f0 is inf in float32; features must be finite: mend or drop it",
    "1,2,3,0,": "label is empty, expected a whole number",
    "1,2,3,0,1.5": "label is 1.5, expected a whole number",
    '1,"2\n",3,0,0': "a quote is not closed on its line; values hold no line ends here",
    '1,"2"0,3,0,0': "text follows a closing quote on its line; write quotes within quotes twice",
    '1,2,3,"0" ,0': "text follows a closing quote on its line; write quotes within quotes twice",
}


def read(source, **schema):
    """Return the times of the events that come before the error, and its text."""
    times = []
    with pytest.raises(StreamError) as caught:
        collect(times, source, **schema)
    return times, str(caught.value)


def collect(times, source, **schema):
    for batch in open_stream(source, **schema):
        times += batch.t.tolist()


def placed(rows, many):
    """Return each row with how many are before it: one, or many; a quick run tries that once."""
    first, *others = rows
    return [*((row, 1) for row in rows), (first, many), *(slow(row, many) for row in others)]


@pytest.mark.parametrize(("row", "num_before"), placed(CSV_ROWS, 40_000))
def test_csv_names_the_line_of_a_malformed_row(tmp_path, row, num_before):
    path = tmp_path / "events.csv"
    path.write_text(HEADER + GOOD * num_before + row + "\n" + GOOD * 3)
    times, error = read(path, features=["f0"], label="label")
    assert times == [3] * num_before
    assert error == f"{path}, line {num_before + 2}: {CSV_ROWS[row]}"


def test_csv_says_that_the_file_ends_within_its_last_line(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text(HEADER + GOOD + "1,2")
    times, error = read(path)
    assert times == [3]
    assert error == (
        f"{path}, line 3: 2 values, expected 5 (src, dst, t, f0, label); "
        "the file ends within this line: fetch it again, or remove the line"
    )


def test_csv_names_the_byte_that_is_not_utf8(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\nann,bob,1\ncy\xff,bob,2\n")
    assert read(path) == (
        [1],
        f"{path}, line 3: byte 3 of the line (0xff) is not UTF-8; write the file as UTF-8",
    )


def test_csv_with_old_line_ends_is_refused_not_miscounted(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n1,2,3\r4,5,6\n")
    times, error = read(path)
    assert times == []
    assert error.startswith(f"{path}, line 2: ")


def test_a_first_id_with_a_decimal_point_is_not_taken_for_a_name(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("src,dst,t\n12.0,2,3\n")
    assert read(path) == (
        [],
        f"{path}, line 2: src is 12.0, expected an integer or a string; {AS_TEXT}",
    )


def test_an_empty_name_is_refused(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("src,dst,t\nann,bob,1\nann,,2\n")
    expected = f"{path}, line 3: dst is empty; every event needs both its nodes"
    assert read(path) == ([1], expected)


def test_a_header_that_cannot_be_read_is_refused(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text('src,"dst,t\n1,2,3\n')
    expected = "a quote is not closed in the header 'src,\"dst,t'; mend it"
    assert read(path) == ([], f"{path}, line 1: {expected}")
    path.write_bytes(b"\x89PNG\r\n\x1a\n")
    expected = "byte 1 of the line (0x89) is not UTF-8; write the file as UTF-8"
    assert read(path) == ([], f"{path}, line 1: {expected}")


def test_hexadecimal_text_outside_the_ids_is_let_alone(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("src,dst,t,hash\n1,2,3,0x10\n")
    assert [batch.src.tolist() for batch in open_stream(path)] == [[0]]


JSON_GOOD = '{"src": 1, "dst": 2, "t": 3, "x": [1, 2], "label": 0}\n'


def json_row(**changes):
    row = {"src": "1", "dst": "2", "t": "3", "x": "[1, 2]", "label": "0"} | changes
    return "{" + ", ".join(f'"{k}": {v}' for k, v in row.items() if v is not None) + "}"


JSON_ROWS = {
    "": "the line is blank; remove it",
    '{"src": 1,': "not JSON: expecting property name enclosed in double quotes at character 11; "
    "write one object a line",
    JSON_GOOD.strip() * 2: "not JSON: extra data at character 54; write one object a line",
    "[1]": "[1] is no object; write one object a line",
    json_row(src="1.0"): f"src is 1.0, expected an integer; write it as one, or {AS_TEXT}",
    json_row(src='"7"'): f"src is '7', expected an integer; write it as one, or {AS_TEXT}",
    json_row(src="true"): f"src is True, expected an integer; write it as one, or {AS_TEXT}",
    json_row(src="null"): "src is missing; every event needs a value",
    json_row(dst=None): "dst is missing; every event needs a value",
    json_row(src=str(2**63)): f"src is {2**63}, beyond int64; {AS_TEXT}",
    json_row(src="-3"): f"src is -3; integer ids start at 0: {AS_TEXT}",
    json_row(t="3.5"): f"t is 3.5, between two ticks of 1 s; {FINER}",
    json_row(t="true"): "t is True, expected a number of s",
    json_row(t='"now"'): "t is 'now', expected a number of s",
    json_row(t=str(2**63)): f"t is {2**63}, beyond int64 ticks of 1 s",
    json_row(t="2"): "tick 2 comes after tick 3; times must not decrease: "
    "pass sort=True to read everything first and sort it by time",
    json_row(label="0.5"): "label is 0.5, expected a whole number",
    json_row(x="[1]"): "x has 1 values, expected 2 as in most of the first rows",
    json_row(x="[1, 2, 3]"): "x has 3 values, expected 2 as in most of the first rows",
    json_row(x="[1, NaN]"): "x[1] is nan in float32; features must be finite: mend or drop it",
    json_row(x="[1e39, 0]"): "x[0] is inf in float32; features must be finite: mend or drop it",
    json_row(x="[1, null]"): "x holds an empty value; features must be finite",
    json_row(x='[1, "2"]'): "x is [1, '2'], expected a list of numbers",
    json_row(x="null"): "x is missing; every event needs a value",
    '{"src": 1, "src": 1, "dst": 2, "t": 3}': "the key 'src' is there twice; keep one",
}


@pytest.mark.parametrize(("row", "num_before"), placed(JSON_ROWS, 20_000))
def test_jsonl_names_the_line_of_a_malformed_row(tmp_path, row, num_before):
    path = tmp_path / "events.jsonl"
    path.write_text(JSON_GOOD * num_before + row + "\n" + JSON_GOOD * 3)
    times, error = read(path, features="x", label="label")
    assert times == [3] * num_before
    assert error == f"{path}, line {num_before + 1}: {JSON_ROWS[row]}"


@pytest.mark.parametrize(
    "row", ['{"src": 1, "dst": 2, "t": ' + "9" * 5000 + "}", '{"src": ' + "[" * 100_000]
)
def test_jsonl_survives_what_breaks_a_parser(tmp_path, row):
    path = tmp_path / "events.jsonl"
    path.write_text('{"src": 1, "dst": 2, "t": 3}\n' + row + "\n")
    times, error = read(path)
    assert times == [3]
    assert error.startswith(f"{path}, line 2: ")
    assert len(error) < 400


def test_jsonl_names_the_byte_that_is_not_utf8(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"src": "a", "dst": "b", "t": 1}\n{"src": "\xff", "dst": "b", "t": 1}\n')
    expected = "byte 10 of the line (0xff) is not UTF-8; write the file as UTF-8"
    assert read(path) == ([1], f"{path}, line 2: {expected}")


TABLES = {
    "null id": ({"src": [1, None]}, "src is missing; every event needs a value"),
    "null time": ({"t": [1, None]}, "t is missing; every event needs a value"),
    "negative id": ({"dst": [1, -5]}, f"dst is -5; integer ids start at 0: {AS_TEXT}"),
    "uint64 id": (
        {"src": np.array([1, 2**63], dtype=np.uint64)},
        f"src is {2**63}, beyond int64; {AS_TEXT}",
    ),
    "uint64 time": (
        {"t": np.array([1, 2**63], dtype=np.uint64)},
        f"t is {2**63}, beyond int64 ticks of 1 s",
    ),
    "nan time": ({"t": [1.0, float("nan")]}, "t is nan, expected a number of s"),
    "wide float time": (
        {"t": [1.0, 2.0**60]},
        "t is 1.152921504606847e+18, which float64 cannot hold to the tick; store integers",
    ),
    "fractional time": (
        {"t": [1.0, 1.25]},
        f"t is 1.25, between two ticks of 1 s; {FINER}",
    ),
    "late": (
        {"t": [9, 4]},
        "tick 4 comes after tick 9; times must not decrease: "
        "pass sort=True to read everything first and sort it by time",
    ),
    "nan feature": (
        {"f0": [0.0, float("nan")]},
        "f0 is nan in float32; features must be finite: mend or drop it",
    ),
    "wide feature": (
        {"f0": [0.0, 1e39]},
        "f0 is inf in float32; features must be finite: mend or drop it",
    ),
    "float label": ({"label": [0.0, 0.5]}, "label is 0.5, expected a whole number"),
}


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.parametrize("ending", ["table", "parquet", "arrow"])
def test_columnar_formats_name_the_row(tmp_path, case, ending):
    columns, text = TABLES[case]
    rows = {"src": [1, 2], "dst": [3, 4], "t": [5, 6], "f0": [0.5, 1.0], "label": [0, 1]}
    table = pa.table(rows | columns)
    source, name = table, "table"
    if ending != "table":
        source = tmp_path / f"events.{ending}"
        name = str(source)
        write = pa.parquet.write_table if ending == "parquet" else pa.feather.write_feather
        write(table, source)
    times, error = read(source, features=["f0"], label="label")
    assert len(times) == 1
    assert error == f"{name}, row 1: {text}"


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"src": [1.5]}, "table, row 0: src is 1.5, expected an integer or a string; " + AS_TEXT),
        ({"src": [True]}, "table, row 0: src is True, expected an integer or a string; " + AS_TEXT),
        ({"t": [[1]]}, "table, row 0: t is of type list<item: int64>, expected numbers"),
        ({"f0": ["big"]}, "table, row 0: f0 is of type string, expected numbers"),
        ({"label": ["7"]}, "table, row 0: label is of type string, expected numbers"),
    ],
)
def test_a_column_of_a_wrong_type_is_refused_as_a_whole(columns, text):
    rows = {"src": [1], "dst": [3], "t": [5], "f0": [0.5], "label": [0]}
    with pytest.raises(StreamError) as caught:
        list(open_stream(rows | columns, features="f0", label="label"))
    assert str(caught.value) == text


def test_bad_utf8_in_a_table_names_the_row(tmp_path):
    raw = pa.array([b"ann", b"\xff"]).view(pa.string())
    table = pa.table({"src": raw, "dst": raw, "t": [1, 2]})
    assert read(table) == ([1], "table, row 1: src is not UTF-8; write the file as UTF-8")
    path = tmp_path / "events.arrow"
    pa.feather.write_feather(table, path)
    assert read(path) == ([1], f"{path}, row 1: src is not UTF-8; write the file as UTF-8")


@pytest.mark.parametrize("name", ["events.parquet", "events.arrow", "events.feather"])
@pytest.mark.parametrize("data", [b"", b"PAR1", b"ARROW1\0\0", b"src,dst,t\n" * 50])
def test_a_file_that_is_not_what_its_name_says(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(StreamError, match=rf"^{path}: no readable (Parquet|Arrow) file: "):
        open_stream(path)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_damage_inside_a_columnar_file_is_an_error_not_a_crash(tmp_path, ending):
    path = tmp_path / f"events.{ending}"
    ids = [f"node-{i % 97}" for i in range(5000)]
    table = pa.table({"src": ids, "dst": ids, "t": range(5000)})
    write = pa.parquet.write_table if ending == "parquet" else pa.feather.write_feather
    write(table, path)
    whole = path.read_bytes()
    rng = np.random.default_rng(7)
    for _ in range(60):
        data = bytearray(whole)
        for at in rng.integers(0, len(data), 20):
            data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        times = []
        with contextlib.suppress(StreamError):
            collect(times, path)
            assert len(times) == 5000


@pytest.mark.parametrize("cut", [10, 5_000, 60_000])
def test_gzip_cut_short_gives_the_whole_lines_then_an_error(tmp_path, cut):
    text = "src,dst,t\n" + "".join(f"{i},{i * 7919 % 1000},{i}\n" for i in range(50_000))
    path = tmp_path / "events.csv.gz"
    path.write_bytes(gzip.compress(text.encode())[:cut])
    times, error = read(path)
    assert "the compressed data is damaged or cut short after" in error
    assert times == list(range(len(times)))


def test_gzip_with_a_flipped_bit_is_an_error(tmp_path):
    text = "src,dst,t\n" + "".join(f"{i},{i * 7919 % 1000},{i}\n" for i in range(50_000))
    data = bytearray(gzip.compress(text.encode()))
    data[-6] ^= 1  # in the checksum
    path = tmp_path / "events.csv.gz"
    path.write_bytes(data)
    with pytest.raises(StreamError, match="damaged or cut short"):
        list(open_stream(path))


def test_a_line_without_end_is_refused_before_it_fills_memory(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n1,2,3\n" + b"9" * (18 << 20))
    times, error = read(path)
    assert times == [3]
    size = f"{18 << 20:,} bytes, more than max_record_bytes=1048576"
    assert error == f"{path}, line 3: the line has {size}"
