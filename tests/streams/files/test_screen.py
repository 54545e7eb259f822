from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from tgflow.streams import open_files
from tgflow.streams.files.blocks import TextBlock
from tgflow.streams.files.csv import CsvDecoder
from tgflow.streams.files.lines import BAD, OK
from tgflow.streams.rows.limits import Checks
from tgflow.streams.rows.schema import Columns, Scale

VALUES = (
    *("0", "7", "-5", "+5", " 6", "6 ", "0x1f", "0X1F", "-0x1", "x", "1e3", "1.0", "1.5", ".5"),
    *("5.", "", " ", "nan", "inf", "-inf", "Infinity", "NaN", "1_000", "12a", "1" * 30, "-", "+"),
    *("1e400", "1e-400", "é", "1,2", "1 2", "0.1234567890123456789", "1e", "e1", "--1", "\t4"),
)


@pytest.fixture
def parser(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("src,dst,t,f\n1,2,3,4\n")
    columns = Columns("src", "dst", "t", None, ("f",))
    return CsvDecoder(path).parser(columns, "int", Scale("s", "s"), Checks())


def takes(parser, line):
    try:
        return len(parser.parse(TextBlock(line, 1, 0))) == 1
    except pa.ArrowInvalid:
        return False


@pytest.mark.parametrize("place", range(4))
def test_what_is_hopeless_is_never_taken_and_what_is_fine_is(parser, place):
    values = [["1", "2", "3", "4"] for _ in VALUES]
    for row, value in zip(values, VALUES, strict=True):
        row[place] = value
    lines = [(",".join(row) + "\n").encode() for row in values]
    verdicts = parser.screen(TextBlock(b"".join(lines), 1, 0))
    assert {OK, BAD} <= set(verdicts.tolist())
    for line, verdict in zip(lines, verdicts.tolist(), strict=True):
        assert not (verdict == BAD and takes(parser, line)), line
        assert not (verdict == OK and not takes(parser, line)), line


def test_lines_with_quotes_are_not_screened(parser):
    assert parser.screen(TextBlock(b'1,"2",3,4\n', 1, 0)) is None


def test_many_bad_rows_take_few_parses(tmp_path, monkeypatch):
    lines = [f"{i},1,{i},0.5\n" for i in range(20_000)]
    kinds = ["1,x,3,0\n", "1,2\n", "1,2,3,?\n"]
    for i, bad in zip(range(5, 20_000, 20), kinds * 400, strict=False):
        lines[i] = bad
    path = tmp_path / "events.csv"
    path.write_text("src,dst,t,f\n" + "".join(lines))
    source = open_files(path, features=["f"])
    parses, read_csv = [], pa.csv.read_csv
    monkeypatch.setattr(pa.csv, "read_csv", lambda *a: parses.append(1) or read_csv(*a))
    source.start({})
    arrivals = []
    while 0 not in source.ended():
        arrivals += source.poll({0}, 1.0)
    source.close()
    assert [row.index for each in arrivals for row in each.rows.bad()] == list(range(5, 20_000, 20))
    assert np.concatenate([each.rows.events.t for each in arrivals]).tolist() == [
        i for i in range(20_000) if i % 20 != 5
    ]
    assert len(parses) < 30
