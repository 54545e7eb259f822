"""Randomly damaged rows: exactly those accepted by a reference parser are accepted.

The reference parser reads row by row in plain Python, following the guide to streams.
TGFLOW_MUTANTS is the number of files tried per format.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
import re
import struct
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from helpers.effort import tries
from helpers.files import flat, read
from tgflow.base.units import INT64_MAX
from tgflow.streams import FileSource
from tgflow.streams.files.text import OpenQuote

MUTANTS = int(os.environ.get("TGFLOW_MUTANTS", tries(2500, 20)))
ROWS, FIRST = 12, 13
"""Rows that may be damaged; good rows of a table before them."""
INTEGER = re.compile(r"(-?0|[1-9][0-9]*)")
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
NUMBER = re.compile(rf"[ \t]*([+-]?{_NUMBER})[ \t]*")
MOST_DIGITS = 22


class NoEvent(ValueError):
    """Raised for a bad row."""


def wanted(condition):
    if not condition:
        raise NoEvent


def node(value):
    """Return an integer id."""
    wanted(type(value) is int and 0 <= value <= INT64_MAX)
    return value


def whole(value):
    """Return an int64 number: a time in ticks of its own unit, or a label."""
    wanted(type(value) in (int, Decimal) and Decimal(value).is_finite())
    number = Decimal(value)
    wanted(number == 0 or number.adjusted() < MOST_DIGITS)
    wanted(number == number.to_integral_value() and abs(number) <= INT64_MAX)
    return int(number)


def single(value):
    """Return a number rounded to float32."""
    try:
        found = struct.unpack("f", struct.pack("f", float(value)))[0]
    except OverflowError:
        raise NoEvent from None
    wanted(math.isfinite(found))
    return found


def features(values):
    return tuple(single(value) for value in values)


def texts(pattern, text):
    match = pattern.fullmatch(text)
    wanted(match)
    return match[1]


def csv_event(line, width):
    """Return the event on a line of src, dst, t, label and features."""
    try:
        text = line.decode()
        wanted("\r" not in text and text.strip() and not text.startswith("\ufeff"))
        values = next(csv.reader([text], strict=True))
    except (UnicodeDecodeError, csv.Error):
        raise NoEvent from None
    wanted(len(values) == 4 + width)
    src, dst = (node(int(texts(INTEGER, value))) for value in values[:2])
    t, label = (whole(Decimal(texts(NUMBER, value))) for value in values[2:4])
    return src, dst, t, label, features(texts(NUMBER, value) for value in values[4:])


def unique(pairs):
    wanted(len(dict(pairs)) == len(pairs))
    return dict(pairs)


def json_event(line, width):
    """Return the event of a line of JSON, whose features are a list."""
    try:
        row = json.loads(line.decode(), parse_float=Decimal, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise NoEvent from None
    wanted(isinstance(row, dict) and not line.startswith(b"\xef\xbb\xbf"))
    x = row.get("x")
    wanted(isinstance(x, list) and len(x) == width)
    wanted(all(type(value) in (int, Decimal, float) for value in x))
    src, dst = node(row.get("src")), node(row.get("dst"))
    return src, dst, whole(row.get("t")), whole(row.get("label")), features(x)


def typed_event(row, width):
    """Return the event of a row of a table, whose columns have types."""
    for name in ("t", "label"):
        value = row[name]
        if isinstance(value, float):
            wanted(math.isfinite(value) and value.is_integer() and abs(value) < 2**53)
            row[name] = int(value)
    if isinstance(row["label"], bool):
        row["label"] = int(row["label"])
    x = row["x"]
    wanted(isinstance(x, list) and len(x) == width and None not in x)
    src, dst = node(row["src"]), node(row["dst"])
    return src, dst, whole(row["t"]), whole(row["label"]), features(x)


def events_of(rows, event, width):
    """Return the events by row number."""
    found = {}
    for number, row in enumerate(rows):
        try:
            found[number] = event(row, width)
        except NoEvent:
            continue
    return found


def taken(path, **schema):
    """Return the events that tgflow accepts by row number, and the number of bad rows."""
    source = FileSource(path, id_kind="int", label="label", **schema)
    polls = read(source)
    labels = [label for poll in polls for label in poll.events.label.tolist()]
    events, bad = flat(polls)
    assert len({row for row, *_ in bad} | {row for row, *_ in events}) == len(events) + len(bad)
    pairs = zip(events, labels, strict=True)
    return {row: (src, dst, t, label, x) for (row, src, dst, t, x), label in pairs}, len(bad)


def whole_lines(chance, make):
    """Return good lines, the first of which set the feature type."""
    return [make(i, chance) for i in range(ROWS)]


def csv_line(i, chance):
    x = chance.choice(["0.5,-1e3", "2,.25", '"7",1.5e-3', "0,0"])
    return f"{i},{chance.randrange(9)},{i},{chance.choice([0, 1, 2**40])},{x}".encode()


def json_line(i, chance):
    x = chance.choice([[0.5, -1e3], [2, 0.25], [0, 1e-3]])
    return json.dumps(
        {"src": i, "dst": chance.randrange(9), "t": i, "label": 2**40, "x": x}
    ).encode()


CSV_BYTES = [*(bytes([c]) for c in b'0123456789.-+eExXnaif_," \t\r\n\0'), b"\xff", b"\xc3\xa9"]
CSV_BYTES += [b"e9", b"9223372036854775807", b"9223372036854775808", b"1e39", b"nan", b'""', b".0"]
JSON_BYTES = [*CSV_BYTES, b"{", b"}", b"[", b"]", b":", b"true", b"null", b"NaN", b"\\u00e9"]
JSON_BYTES += ["\u2028".encode(), b'"src":1,', b", 3", b"}{", b"\\", b'"x": [1, 2],', b"Infinity"]


def spoiled(lines, pieces, chance):
    """Return lines with some changed, never the first three."""
    lines = list(lines)
    for _ in range(chance.randint(1, 5)):
        number = chance.randrange(3, len(lines))
        line = lines[number]
        at = chance.randint(0, len(line))
        cut = at + chance.choice([0, 0, 1, 1, 2])
        lines[number] = line[:at] + chance.choice([b"", *pieces]) + line[cut:]
    return lines


def lines_in(data):
    """Return the lines of a file that are not blank, without their ends."""
    return [line.removesuffix(b"\r") for line in data.split(b"\n") if line.strip()]


def csv_rows(data):
    """Return the rows of a file as `csv` divides it; quoted values may have line ends.

    None if a quote that is never closed hides later lines.
    """
    lines = [*re.findall(rb"[^\n]*\n", data), b"end"]
    reader = csv.reader(line.decode("latin-1").replace("\r", "x") for line in lines)
    ends = [0, *(reader.line_num for _ in reader)]
    rows = [b"".join(lines[start:stop]) for start, stop in pairwise(ends)]
    if rows[-1] != b"end":  # a quote is open there
        return None if ends[-1] - ends[-2] > 2 else [*rows[:-1], rows[-1].removesuffix(b"end")]
    return rows[:-1]


def test_randomly_damaged_csv_lines(tmp_path):
    chance, path = random.Random(1), tmp_path / "made.csv"
    for _ in range(MUTANTS):
        data = b"\n".join(spoiled(whole_lines(chance, csv_line), CSV_BYTES, chance)) + b"\n"
        path.write_bytes(b"src,dst,t,label,f0,f1\n" + data)
        if (rows := csv_rows(data)) is None:
            with pytest.raises(OpenQuote):
                taken(path, features="f")
            continue
        lines = [re.sub(rb"\r?\n\Z", b"", row) for row in rows if row.strip()]
        expected = events_of(lines, csv_event, 2)
        assert taken(path, features="f") == (expected, len(lines) - len(expected)), data


def test_randomly_damaged_json_lines(tmp_path):
    chance, path = random.Random(2), tmp_path / "made.jsonl"
    for _ in range(MUTANTS):
        data = b"\n".join(spoiled(whole_lines(chance, json_line), JSON_BYTES, chance)) + b"\n"
        path.write_bytes(data)
        lines = lines_in(data)
        expected = events_of(lines, json_event, 2)
        size = chance.choice([1, 30, 100, 1 << 20])
        found = taken(path, features="x", block_bytes=size)
        assert found == (expected, len(lines) - len(expected)), data


INTEGERS = [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64()]
NUMBERS = [*INTEGERS, pa.float64(), pa.decimal128(24, 3)]


def integer(kind, chance):
    """Return an integer of a type: small, or near one of its limits."""
    signed, bits = not str(kind).startswith("u"), kind.bit_width
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return chance.choice([0, 1, 7, 7, 100, low, high, max(low, -1)])


def number(kind, chance):
    """Return a value of a column of numbers."""
    if chance.random() < 0.1:
        return None
    if pa.types.is_integer(kind):
        return integer(kind, chance)
    if pa.types.is_floating(kind):
        return chance.choice([0.0, 3.0, 0.5, -2.0, 1e40, 2.0**53, math.nan, math.inf, 1e300])
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    return chance.choice([Decimal("3.000"), Decimal("0.125"), Decimal(-4), Decimal(10) ** 19])


def wide(kind, chance):
    """Return a list of numbers, mostly two."""
    if chance.random() < 0.1:
        return None
    length = chance.choice([2, 2, 2, 2, 0, 1, 3])
    return [number(kind, chance) for _ in range(length)]


def made_table(chance):
    """Return a table of random types whose first rows are good."""
    of_t = chance.choice(NUMBERS)
    of_label = chance.choice([*NUMBERS, pa.bool_()])
    of_x = chance.choice([pa.float32(), pa.float64(), pa.int16(), pa.bool_()])
    columns = {}
    for name in ("src", "dst"):
        kind = chance.choice(INTEGERS)
        columns[name] = pa.array([1] * FIRST + [number(kind, chance) for _ in range(ROWS)], kind)
    columns["t"] = pa.array([1] * FIRST + [number(of_t, chance) for _ in range(ROWS)], of_t)
    first = [True if pa.types.is_boolean(of_label) else 1] * FIRST
    columns["label"] = pa.array(first + [number(of_label, chance) for _ in range(ROWS)], of_label)
    one = True if pa.types.is_boolean(of_x) else 1
    lists = [[one, one]] * FIRST + [wide(of_x, chance) for _ in range(ROWS)]
    columns["x"] = pa.array(lists, pa.list_(of_x))
    return pa.table(columns)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_tables_of_any_types_and_values_match_the_reference(tmp_path, ending):
    chance, path = random.Random(3), tmp_path / f"made.{ending}"
    write = pa.parquet.write_table if ending == "parquet" else pa.feather.write_feather
    for _ in range(MUTANTS):
        table = made_table(chance)
        write(table, path)
        expected = events_of(table.to_pylist(), typed_event, 2)
        assert taken(path, features="x") == (expected, len(table) - len(expected)), table


def test_feature_type_is_the_majority_of_the_first_rows(tmp_path):
    path = tmp_path / "made.jsonl"
    rows = [{"src": i, "dst": 1, "t": i, "label": 0, "x": [i, i + 1]} for i in range(1, 7)]
    odd = [7, [7], [1, 2, 3], True, [True, 1], None]
    given = [{**rows[0], "x": x} for x in odd] + rows
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    events, num_bad = taken(path, features="x")
    assert {number: event[4] for number, event in events.items()} == {
        4: (1, 1),
        **{6 + i: (i + 1, i + 2) for i in range(6)},
    }
    assert num_bad == len(odd) - 1
