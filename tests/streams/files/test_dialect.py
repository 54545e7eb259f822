"""Delimited text is read as Python's `csv` reads it; nothing quoted is a row.

Each row is an event or is refused with its line, wherever blocks end.
"""

import csv
import gzip
import io
import json
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import slow, slow_in_full, tries
from helpers.files import flat
from tgflow.base._native import may_have_other_spellings
from tgflow.streams import FileSource, StreamError
from tgflow.streams.errors import SourceCorrupt
from tgflow.streams.rows.schema import Checks

EXAMPLES = int(os.environ.get("TGFLOW_FUZZ", tries(800, 12)))
EVIL = "EVIL\nEVIL,VICTIM,7,x\nEVIL\tVICTIM\t7\tx\r\nEVIL;VICTIM;7;x\n"


def outcome(path, position=None, **options):
    """Return the events, the bad rows, the place of the error that ends the file, and the polls."""
    found, polls, error = FileSource(path, id_kind="string", **options), [], None
    try:
        found.start({} if position is None else {0: position})
        while 0 not in found.ended():
            polls += found.poll({0}, 5)
    except StreamError as caught:
        error = caught.where
    finally:
        found.close()
    events, bad = flat(polls)
    rows = [tuple(event[1:4]) for event in events]
    return rows, [(place["line"], place["byte"], raw) for _, _, place, raw in bad], error, polls


def by_csv(text, delimiter):
    """Return the events of a file with a header, the lines of its other rows, and two facts.

    The facts: whether a row ends in `\\r` alone, and whether the last row has an open quote.
    """
    lines = io.StringIO(text, newline="").readlines()
    reader = csv.reader(iter(lines), delimiter=delimiter)
    next(reader)
    events, bad, is_open, has_returns = [], [], False, False
    while (first := reader.line_num) < len(lines):
        next(reader)
        row = "".join(lines[first : reader.line_num])
        has_returns |= row.endswith("\r")
        try:
            parts = io.StringIO(row, newline="")
            [values] = csv.reader(parts, delimiter=delimiter, strict=True)
        except csv.Error:
            values = []
            rest = io.StringIO(row.removesuffix("\n") + "\nx", newline="")
            is_open = len(list(csv.reader(rest, delimiter=delimiter))) == 1
        if len(values) == 4 and values[0] and values[1] and values[2].isdigit():
            events.append((*values[:2], int(values[2])))
        elif row.strip():
            bad.append(1 + "".join(lines[:first]).count("\n"))
    return events, bad, has_returns, is_open


def quoted(value):
    return '"' + value.replace('"', '""') + '"'


@st.composite
def delimited(draw, delimiter):
    """Return a file: values quoted in every way, some rows bad, sometimes one quote more."""
    inner = st.lists(st.sampled_from(["x", '"', delimiter, "\n", "\r\n", "\r", "é", " ", EVIL]))
    text = st.sampled_from(["a", "b c", '5"x', " a", '"a"', '""', "\0", "a" * 40]) | inner.map(
        lambda parts: quoted("".join(parts))
    )
    broken = st.sampled_from(["", '"a"b', '"a" ', 'a""', '"a\nb"c', "é"])
    number = st.integers(0, 999).flatmap(lambda n: st.sampled_from([str(n), quoted(str(n)), "x"]))
    row = st.tuples(text, text, number, st.one_of(text, text, broken)).map(delimiter.join)
    odd = st.sampled_from(["", " ", "a", delimiter * 5]) | row.map(lambda each: each + delimiter)
    rows = draw(st.lists(st.one_of(row, row, row, row, odd), max_size=12))
    found = delimiter.join(["src", "dst", "t", '"no\nte"']) + "\n"
    found += "".join(each + draw(st.sampled_from(["\n", "\r\n"])) for each in rows)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(found.index('e"') + 3, len(found)))
        found = found[:at] + '"' + found[at:]
    return found if draw(st.booleans()) else found.removesuffix("\n").removesuffix("\r")


@slow_in_full
@settings(max_examples=EXAMPLES)
@given(st.data())
@pytest.mark.parametrize(("ending", "sep"), [("csv", ","), slow("tsv", "\t"), slow("csv.gz", ";")])
def test_delimited_text_is_read_as_by_csv_wherever_blocks_end(scratch, ending, sep, data):
    text = data.draw(delimited(sep))
    events, lines, has_returns, is_open = by_csv(text, sep)
    path, raw = scratch / f"events.{ending}", text.encode()
    path.write_bytes(gzip.compress(raw) if ending == "csv.gz" else raw)
    options = {"sep": sep} if sep == ";" else {}
    whole = outcome(path, **options)
    if has_returns:  # such a row is refused together with those up to the next line end
        assert set(whole[0]) <= set(events)
    else:
        assert whole[0] == events
        assert [line for line, _, _ in whole[1]] == lines[: len(lines) - (whole[2] is not None)]
        assert is_open or whole[2] is None
    for line, byte, row in whole[1]:
        assert raw[byte:].startswith(row)
        assert raw[:byte].count(b"\n") == line - 1
    options["block_bytes"] = data.draw(st.integers(1, len(raw)))
    polls = outcome(path, **options)
    assert polls[:3] == whole[:3]
    if polls[3]:
        num = data.draw(st.integers(1, len(polls[3])))
        later = outcome(path, json.loads(json.dumps(polls[3][num - 1].position)), **options)
        num_read = [sum(len(each.events) for each in polls[3][:num])]
        assert later[0] == whole[0][num_read[0] :]
        assert later[2] == whole[2]


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("num_before", [0, 3])
def test_quote_longer_than_a_record_ends_the_file_with_its_line(tmp_path, is_closed, num_before):
    path, checks = tmp_path / "events.csv", Checks(max_record_bytes=100)
    good, long = "a,b,1,n\n", "a,b,2,x" + "y" * 200 + "\n"
    text = "src,dst,t,note\n" + (good + long + 'a,"b\nc",3,n\n') * num_before
    text += 'a,"b\nc",4,"n\n' + "EVIL,VICTIM,7,x\n" * 20 + '",\n' * is_closed + good
    path.write_text(text)
    line = 3 + 4 * num_before
    for size in (1, 2, 7, 50, 101, 150, 1 << 20):
        rows, bad, error, _ = outcome(path, block_bytes=size, checks=checks)
        assert rows == [("a", "b", 1), ("a", "b\nc", 3)] * num_before, size
        assert [line for line, *_ in bad] == [3 + 4 * i for i in range(num_before)], size
        assert error == f"{path}, line {line}", size


def test_open_quote_on_the_last_line_is_a_bad_row(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text('src,dst,t\na,b,1\na,"b,2\n')
    assert outcome(path)[:3] == ([("a", "b", 1)], [(3, 16, b'a,"b,2')], None)


@pytest.mark.parametrize("size", [1000, 1 << 20])
@pytest.mark.parametrize("bad", ["", "a,b\n"])
@pytest.mark.parametrize("value", ["v" * 200_000, quoted("v,\n" * 70_000)])
def test_long_value_is_accepted_whatever_its_neighbors(tmp_path, value, bad, size):
    path = tmp_path / "events.csv"
    path.write_text(f"src,dst,t,note\na,b,1,x\n{bad}a,b,2,{value}\na,b,3,x\n")
    assert outcome(path, block_bytes=size)[0] == [("a", "b", t) for t in (1, 2, 3)]


def test_quote_after_a_lone_return_hides_what_it_encloses(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b'src,dst,t\na,b,1\r"\nEVIL,VICTIM,7\n"\na,b,2\n')
    rows, bad, error, _ = outcome(path)
    assert (rows, [line for line, *_ in bad], error) == ([("a", "b", 2)], [2], None)


@pytest.mark.parametrize("num_zeros", [1, 512])
def test_gzip_with_zeros_after_its_members_is_read(tmp_path, num_zeros):
    path, rows = tmp_path / "events.csv.gz", [("a", "b", t) for t in range(900)]
    text = "src,dst,t\n" + "".join(f"{src},{dst},{t}\n" for src, dst, t in rows)
    packed = gzip.compress(text[:5000].encode()) + gzip.compress(text[5000:].encode())
    path.write_bytes(packed + b"\0" * num_zeros)
    assert outcome(path, block_bytes=100)[0] == outcome(path)[0] == rows
    path.write_bytes(packed[:-30])
    with pytest.raises(SourceCorrupt):
        outcome(path)


def test_spaces_separate_values_but_not_within_quotes(tmp_path):
    path = tmp_path / "events.txt"
    path.write_text('# "a\n a  "b  c" 1\n"d\n e 7 \n" f\t 2 \n# " x\ng h 3\n')
    assert outcome(path)[0] == [("a", "b  c", 1), ("d\n e 7 \n", "f", 2), ("g", "h", 3)]


@pytest.mark.parametrize("separator", [",", "\t", " "])
@given(texts=st.lists(st.text('01x,\t \n"-.\r', max_size=9), max_size=9), fill=st.integers(0, 40))
def test_other_spellings_of_integers_are_found_at_any_place(separator, texts, fill):
    borders, blanks = f'{separator}\n"', " \t".replace(separator, "")
    other = rf"(\A|[{borders}])(-?0\d|[{blanks}])|0[xX]|[{blanks}]([{borders}\r]|\Z)"
    text = ("1" * fill).join(texts)
    assert may_have_other_spellings(text.encode(), separator) == bool(re.search(other, text))
