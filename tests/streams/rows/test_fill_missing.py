"""Missing features are refused or filled with a given number."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.files import flat, read
from tgflow.streams import StreamError, open_files, open_stream

ROWS = [(1.5, 2.0), (None, 3.0), (float("nan"), None)]


def write_rows(path):
    table = [{"src": 0, "dst": 1, "t": t, "f0": a, "f1": b} for t, (a, b) in enumerate(ROWS)]
    if path.suffix == ".csv":
        lines = ["0,1,0,1.5,2.0", "0,1,1,,3.0", "0,1,2,nan,NA"]
        path.write_text("src,dst,t,f0,f1\n" + "\n".join(lines) + "\n")
    elif path.suffix == ".jsonl":
        table[2]["f0"] = None
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    else:
        pq.write_table(pa.Table.from_pylist(table), path)
    return path


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_missing_features_are_refused_or_filled(tmp_path, ending):
    path = write_rows(tmp_path / f"a.{ending}")
    with pytest.raises(StreamError, match=r"f0 is "):
        list(open_stream(path, features="f"))
    stream = open_stream(path, features="f", fill_missing=-1)
    assert next(iter(stream)).x.tolist() == [[1.5, 2.0], [-1.0, 3.0], [-1.0, -1.0]]


def test_missing_list_elements_are_filled():
    table = {"src": [0, 0], "dst": [1, 1], "t": [1, 2], "x": [[1.0, None], [None, 4.0]]}
    stream = open_stream(table, features="x", fill_missing=0)
    assert next(iter(stream)).x.tolist() == [[1.0, 0.0], [0.0, 4.0]]


def test_bad_rows_do_not_affect_filled_rows(tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"0,1,{t},," if t % 7 else f"0,1,{t},x,1" for t in range(80)]
    path.write_text("src,dst,t,f0,f1\n" + "\n".join(rows) + "\n")
    events, bad = flat(read(open_files(path, features="f", fill_missing=0, id_kind="int")))
    assert [row[0] for row in bad] == [t for t in range(80) if t % 7 == 0]
    assert {row[4] for row in events} == {(0.0, 0.0)}
