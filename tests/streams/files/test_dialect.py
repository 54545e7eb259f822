"""The one dialect of CSV: the values of a line are those that Python's strict `csv` finds."""

from __future__ import annotations

import csv
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.file_reads import flat, read
from tgflow.streams import open_files

BYTES = b'",\n\r\0\t a1'
"""Those that a dialect is about, and two that it is not."""


def values_of(line, delimiter=","):
    """Return the values of a line without its end, None if it is no row: an independent parser."""
    try:
        text = line.decode()
        if "\r" in text or not text.strip() or text.startswith("\ufeff"):
            return None
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None


def read_texts(path, data):
    """Return what a file of lines of src, dst and t gives, by line: its ids, or None."""
    path.write_bytes(b"src,dst,t\n" + data)
    events, bad = flat(read(open_files(path, id_kind="string")))
    return {row: (src, dst) for row, src, dst, *_ in events} | {row: None for row, *_ in bad}


def expected(lines):
    """Return the same by the independent parser."""
    found = {}
    for number, line in enumerate(lines):
        values = values_of(line)
        is_row = values is not None and len(values) == 3 and all(values[:2])
        is_event = is_row and re.fullmatch(r"[ \t]*[0-9]+[ \t]*", values[2])
        found[number] = tuple(values[:2]) if is_event else None
    return found


def lines_of(data):
    """Return the lines of a file, without the ends that a dialect allows."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    whole = len(lines) if data.endswith(b"\n") else len(lines) - 1
    return [line.removesuffix(b"\r") if i < whole else line for i, line in enumerate(lines)]


@settings(max_examples=tries(300, 25))
@given(st.lists(st.lists(st.sampled_from(BYTES), max_size=9).map(bytes), max_size=12))
@example([b'a,"b'])
@example([b'a,"b', b'c",d'])
@example([b'5"x,a', b'"a"b,c', b'"a,""b",c', b'""a,b'])
@example([b"a\rb,c", b"a\0b,c\td", b" a ,\tb"])
def test_random_bytes_are_the_rows_that_csv_finds(scratch, starts):
    data = b"".join(start + b",0\n" for start in starts)
    assert read_texts(scratch / "made.csv", data) == expected(lines_of(data))
