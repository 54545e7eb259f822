"""One table of odd values gives the same events and refusals whatever it is read from."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch

from helpers.files import read
from helpers.kafka_io import config, decode
from tgflow.graph.id_columns import read_ids
from tgflow.streams import FileSource, StreamError, open_stream
from tgflow.streams.files import reader
from tgflow.streams.kafka.codecs import RecordDecoder
from tgflow.streams.rows.validate import first_id_kind

BIG = 2**53 + 1
"""An integer that float64 cannot hold."""
DAY = 1_714_521_600
"""2024-05-01 in seconds."""
IDS = {
    7: 7, "7": 7, BIG: BIG, str(2**63 - 1): 2**63 - 1, "007": "type", "+7": "type", " 7": "type",
    "7 ": "type", "12.0": "type", 12.0: "type", "-0": 0, "-07": "type", "0x7": "type", "x": "type",
    True: "type", -1: "negative_id", "-1": "negative_id", 2**63: "huge_id",
    "9" * 20: "huge_id", "": "null", None: "null",
}  # fmt: skip
TEXT_IDS = {
    7: "7", "7": "7", "007": "007", " 7": " 7", 12.0: "12.0", "12.0": "12.0", True: "true",
    "9" * 20: "9" * 20, "": "null", None: "null",
}  # fmt: skip
TIMES = {
    5: 5, "5": 5, " 5": 5, 6.0: 6, "1e3": 1000, BIG: BIG, "2024-05-01": DAY,
    "2024-05-01T02:00:00+02:00": DAY, 1.5: "time_precision", "1.5": "time_precision",
    True: "time_type", "soon": "time_type", "": "null", None: "null", 2**63: "time_range",
}  # fmt: skip
LABELS = {
    3: 3, "3": 3, " 3": 3, 4.0: 4, True: 1, "true": 1, "False": 0, BIG: BIG, 0.5: "type",
    "x": "type", "": "null", None: "null",
}  # fmt: skip
FEATURES = {
    0.5: 0.5, "0.5": 0.5, " 0.5": 0.5, 2: 2.0, True: 1.0, "TRUE": 1.0, "x": "type",
    "nan": "nan", 1e39: "inf", "1e39": "inf", "": "null", None: "null",
}  # fmt: skip
# `True` is a key beside 1, not one of these.
TABLE = [
    *(("src", "int", *case) for case in IDS.items()),
    *(("dst", "int", *case) for case in IDS.items()),
    *(("src", "string", *case) for case in TEXT_IDS.items()),
    *(("t", "int", *case) for case in TIMES.items()),
    *(("label", "int", *case) for case in LABELS.items()),
    *(("f", "int", *case) for case in FEATURES.items()),
]
FIRST = {str: "1", float: 1.0, bool: True}
"""Values of the row before, by type."""


def text(value):
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def lines(columns, sep):
    rows = [columns, *zip(*columns.values(), strict=True)]
    return "".join(sep.join(map(text, row)) + "\n" for row in rows)


def source_of(way, columns, folder, monkeypatch):
    """Return what `FileSource` reads a table from."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    wide = [name for name, values in columns.items() if 2**63 in values]
    kinds = {name: pa.uint64() if name in wide else None for name in columns}
    table = pa.table({name: pa.array(v, kinds[name]) for name, v in columns.items()})
    path = folder / f"events.{way}"
    if way in ("csv", "tsv"):
        path.write_text(lines(columns, "," if way == "csv" else "\t"))
    elif way == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif way == "parquet":
        pq.write_table(table, path)
    elif way == "arrow":
        pa.feather.write_feather(table, path)
    elif way == "frame":
        return pd.DataFrame({name: pd.Series(v, dtype=object) for name, v in columns.items()})
    elif way == "stdin":
        data = io.BytesIO(lines(columns, ",").encode())
        monkeypatch.setattr(reader.sys, "stdin", SimpleNamespace(buffer=data))
        return "-"
    return path


def outcome(rows, role):
    """Return the value of the last row, or the code of its fault."""
    if bad := rows.bad():
        return bad[-1].code
    column = rows.events.x[:, 0] if role == "f" else getattr(rows.events, role)
    return column.tolist()[-1]


WAYS = ["csv", "tsv", "jsonl", "parquet", "arrow", "frame", "stdin"]


@pytest.mark.parametrize("way", [*WAYS, "kafka"])
def test_odd_values_are_read_or_refused_alike(way, tmp_path, monkeypatch):
    found = {}
    for role, kind, value, _ in TABLE:
        columns = {"src": [1, 2], "dst": [3, 4], "t": [5, 6], "label": [0, 1], "f": [0.5, 1.5]}
        columns[role] = [FIRST.get(type(value), 1), value]
        options = {"label": "label", "features": ["f"], "time_unit": "s", "id_kind": kind}
        if way == "kafka":
            rows = zip(*columns.values(), strict=True)
            values = [json.dumps(dict(zip(columns, row, strict=True))).encode() for row in rows]
            polls = decode(values, "json", **options).arrivals
        else:
            source = source_of(way, columns, tmp_path, monkeypatch)
            polls = read(FileSource(source, tick_unit="s", **options))
        found[role, kind, repr(value)] = outcome(polls[-1], role)
    assert found == {(role, kind, repr(value)): result for role, kind, value, result in TABLE}


@pytest.mark.parametrize("way", [*WAYS, "kafka"])
@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ([12, 7], "int"), ([12, -7], "int"), (["0012", "12"], "string"), (["+5", "5"], "string"),
        (["12.0", "12"], "string"), ([" 7", "7"], "string"), (["9" * 20, "7"], "string"),
        (["ann", "7"], "string"), ([2**63, 7], "string"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["src", "dst"])
def test_first_rows_fix_the_kind_of_ids(way, ids, kind, name, tmp_path, monkeypatch):
    columns = {"src": [1, 2], "dst": [3, 4], "t": [5, 6]} | {name: ids}
    if way == "kafka":
        rows = zip(*columns.values(), strict=True)
        values = [json.dumps(dict(zip(columns, row, strict=True))).encode() for row in rows]
        decoder = RecordDecoder(config("json", id_kind="string", features=()))
        assert first_id_kind("topic", decoder.first_ids(values))[0] == kind
        return
    source = FileSource(source_of(way, columns, tmp_path, monkeypatch))
    assert source.id_kind == kind
    assert source.id_note.startswith("ids are text, as " if kind == "string" else "ids are int")
    assert ("spaces around ids are kept, as in ' 7'" in source.id_note) == (" 7" in ids)
    if kind == "string":
        [rows] = read(source)
        assert getattr(rows.events, name).to_pylist() == [*map(str, ids)]


def test_kind_of_ids_does_not_depend_on_blocks(tmp_path):
    path = tmp_path / "events.csv"
    for odd, kind, other in ((98, "string", "007"), (150, "int", "007"), (150, "int", "-00")):
        rows = [f"{other if i == odd else i},1,{i}" for i in range(200)]
        path.write_text("\n".join(["src,dst,t", *rows, ""]))
        for block_bytes in (10, 100, 1 << 20):
            source = FileSource(path, block_bytes=block_bytes)
            assert source.id_kind == kind
            bad = [row for rows in read(source) for row in rows.bad()]
            assert len(bad) == (kind == "int")
            assert all("pass id_kind='string'" in row.text for row in bad)


def test_ids_with_spaces_are_counted(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("src,dst,t\n" + "ann,bob,1\n" * 200 + " ann,bob ,1\nan n,bob,1\n")
    counts = [rows.counts for rows in read(FileSource(path))]
    assert counts == [{"id_with_spaces_around": 2}]


@pytest.mark.parametrize("is_frame", [False, True])
def test_columns_of_several_types_are_read_as_texts(is_frame):
    columns = {"src": ["ann", 7], "dst": [7, None], "t": [1, "2024-05-01"]}
    source = FileSource(pd.DataFrame(columns, dtype=object) if is_frame else columns)
    [rows] = read(source)
    assert rows.events.src.to_pylist() == ["ann"]
    assert [bad.text for bad in rows.bad()] == ["dst is missing; every event needs both its nodes"]


def test_tables_that_hold_no_events_are_refused_with_a_sentence():
    lengths = {"src": [1, 2], "dst": [1], "t": [1, 2]}
    with pytest.raises(StreamError, match="columns differ in length: src has 2 rows, dst has 1"):
        open_stream(lengths)
    floats = pd.DataFrame({"src": [None, 1.0], "dst": [1, 2], "t": [1, 2]})
    [batch] = open_stream(floats.dropna(), id_kind="string")
    assert len(batch) == 1


@pytest.mark.parametrize("kind", ["frame", "arrays", "tensors", "arrow", "parquet", "file"])
@pytest.mark.parametrize(("name", "row"), [("src", 1), ("dst", 5000), ("dst", 40_000)])
@pytest.mark.parametrize("id_kind", [None, "int"])
def test_null_that_made_floats_of_ids_is_named_with_its_row(tmp_path, kind, name, row, id_kind):
    columns = {name: np.arange(row + 3) for name in ("src", "dst", "t")}
    values = columns[name] = columns[name].astype(np.float64)
    values[row] = np.nan
    table = pa.table(columns)
    if kind == "frame":
        table = pd.DataFrame(columns)
    elif kind == "tensors":
        table = {name: torch.from_numpy(each) for name, each in columns.items()}
    elif kind == "arrays":
        table = columns
    elif kind == "arrow":
        table = pa.table(columns | {name: pa.array(values, from_pandas=True)})
    elif kind == "parquet":
        pq.write_table(table, table := tmp_path / "events.parquet", row_group_size=7000)
    else:
        with pa.ipc.new_file(table := tmp_path / "events.arrow", pa.table(columns).schema) as file:
            file.write_table(pa.table(columns))
    where = getattr(table, "name", "table")
    text = rf"{where}, row {row}: {name} is missing, which made floats of the column's integers;"
    with pytest.raises(StreamError, match=text):
        open_stream(table, id_kind=id_kind)


def test_null_that_made_floats_of_the_nodes_of_a_table_is_named_with_its_row():
    with pytest.raises(ValueError, match="row 2: the id is missing, which made floats"):
        read_ids(pa.array([0.0, 1.0, float("nan")]), "integers")


def test_missing_values_do_not_fix_the_kind_of_ids():
    assert first_id_kind("a.csv", [("src", 1), ("dst", ""), ("dst", None)]) == ("int", "")
    assert first_id_kind("a.csv", [("src", ""), ("src", "a")])[1].endswith("is 'a'")
