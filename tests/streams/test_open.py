import gzip
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from tgflow.graph.events import concat
from tgflow.graph.ids import NodeIds
from tgflow.streams import Source, StreamError, open_stream, write_events

ENDINGS = ["csv", "tsv", "csv.bz2", "csv.zst", "jsonl", "jsonl.gz", "parquet", "arrow", "feather"]
JODIE = (
    "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    "0,0,0.0,0,-0.175063,-0.176678\n"
    "1,0,36.0,0,0.5,-1e-3\n"
    "0,1,77.0,1,0,2\n"
)


class Frame:
    """The Arrow C stream interface of pandas and polars."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def rows(source):
    """Return (src, dst, t, label, features) of every event, with the stream's own ids."""
    found = []
    for batch in source:
        src, dst = source.ids.decode(batch.src), source.ids.decode(batch.dst)
        label = [None] * len(batch) if batch.label is None else batch.label.tolist()
        x = [()] * len(batch) if batch.x is None else map(tuple, batch.x.tolist())
        found += zip(src, dst, batch.t.tolist(), label, x, strict=True)
    return found


ints = st.integers(0, 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def tables(draw):
    """Return columns of events with ordered times, and the number of features."""
    size, x_dim = draw(st.integers(0, 8)), draw(st.integers(0, 3))
    ids = st.lists(draw(st.sampled_from([ints, names])), min_size=size, max_size=size)
    column = st.lists(ints, min_size=size, max_size=size)
    times = st.lists(st.integers(0, 2**63 - 2), min_size=size, max_size=size)
    features = st.lists(floats, min_size=size, max_size=size)
    columns = {"src": draw(ids), "dst": draw(ids), "t": sorted(draw(times)), "label": draw(column)}
    columns |= {f"f{i}": np.array(draw(features), dtype=np.float32) for i in range(x_dim)}
    return columns


@pytest.mark.parametrize("ending", ENDINGS)
@settings(max_examples=tries(60, 5))
@given(columns=tables())
def test_written_events_are_read_back(scratch, ending, columns):
    x = [name for name in columns if name.startswith("f")]
    kind = "string" if columns["src"] and isinstance(columns["src"][0], str) else "int"
    source = open_stream(columns, features=x, label="label", id_kind=kind)
    path = scratch / f"events.{ending}"
    assert write_events(path, source) == len(columns["src"])
    if not columns["src"]:
        assert list(open_stream(path)) == []
        return
    assert rows(open_stream(path, features=x, label="label", id_kind=kind)) == rows(source)
    assert list(scratch.glob("*.partial")) == []


def test_write_events_leaves_no_half_file(tmp_path):
    bad = open_stream({"src": [1, 2], "dst": [3, 4], "t": [9, 5]})
    with pytest.raises(StreamError):
        write_events(tmp_path / "events.csv", bad)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"'events.dat' has no known ending; end it in .csv"):
        write_events("events.dat", bad)


def test_published_jodie_files_are_read(tmp_path):
    for path, data in (
        (tmp_path / "wikipedia.csv", JODIE.encode()),
        (tmp_path / "wikipedia.csv.gz", gzip.compress(JODIE.encode())),
    ):
        path.write_bytes(data)
        source = open_stream(path, label="label")
        (batch,) = source
        assert (source.x_dim, source.ids.bipartite, len(source.ids)) == (2, True, 4)
        assert batch.src.tolist() == [0, 2, 0]
        assert batch.dst.tolist() == [1, 1, 3]
        assert batch.t.tolist() == [0, 36, 77]
        assert batch.label.tolist() == [0, 0, 1]
        expected = torch.tensor([[-0.175063, -0.176678], [0.5, -1e-3], [0, 2]])
        assert torch.equal(batch.x, expected)


PUBLISHED = "user_id,item_id,timestamp,state_label"
LIST = ",comma_separated_list_of_features"


@pytest.mark.parametrize(
    ("header", "features", "row"),
    [
        (PUBLISHED + LIST, "0.5,1", ["f0", "f1"]),  # SNAP's wikipedia, reddit, mooc and lastfm
        ("user_id, item_id, timestamp, state_label, comma-separated-list-of-features", "1", ["f0"]),
        ("User_ID,Item_ID,Timestamp,State_Label,Comma_Separated_List_Of_Features", "1,2", None),
        ("user, item, timestamp, state label, comma-separated array of features", "1,2", None),
        ('"user_id","item_id","timestamp","state_label",c1,"c 2"', "0.5,1e3", ["c1", "c 2"]),
        ("\ufeff" + PUBLISHED, "", []),
        (PUBLISHED + ",amount\r", "-3.5", ["amount"]),
    ],
)
def test_jodie_layout_is_known_by_its_columns(tmp_path, header, features, row):
    path = tmp_path / "made.csv"
    values = "," + features if features else ""
    path.write_text(f"{header}\n0,0,0.0,0{values}\n0,1,3,1{values}\n", newline="")
    source = open_stream(path, label="label")
    (batch,) = source
    assert (source.ids.bipartite, len(source.ids), batch.label.tolist()) == (True, 3, [0, 1])
    assert list(source.features) == (["f0", "f1"] if row is None else row)
    assert "read as JODIE's files: src, dst, t, label and" in source.notes[0]
    assert "format='csv' reads the columns by their own names" in source.notes[0]


@pytest.mark.parametrize(
    ("header", "row", "options"),
    [
        (PUBLISHED + ",comment", "0,0,0,0,good", {}),
        (PUBLISHED + ",a,b", "0,0,0,0,1,2", {"src": "user_id", "features": ["a"]}),
        ("user_id,item_id,timestamp,amount", "0,0,0,5", {}),
        ("item_id,user_id,timestamp,state_label" + LIST, "0,0,0,0,1", {}),
        (PUBLISHED + LIST, "0,0,0,0,1", {"format": "csv"}),
    ],
)
def test_file_that_resembles_jodie_layout_is_read_by_its_own_names(tmp_path, header, row, options):
    path = tmp_path / "made.csv"
    path.write_text(f"{header}\n{row}\n")
    source = open_stream(path, **options)
    assert [batch.t.tolist() for batch in source] == [[0]]
    assert not source.ids.bipartite
    assert "columns by their usual names" in source.notes[0]
    assert source.x_dim == len(options.get("features", []))


def test_jodie_files_without_features_or_rows(tmp_path):
    path = tmp_path / "wikipedia.csv"
    path.write_text(JODIE)
    assert open_stream(path, features=[]).x_dim == 0
    assert open_stream(path.rename(tmp_path / "mooc"), format="jodie").x_dim == 2
    path.write_text(JODIE.splitlines(keepends=True)[0])
    assert list(open_stream(path)) == []
    path.write_text(JODIE + "1,1,80.0,0,1\n")
    with pytest.raises(StreamError, match=r"line 5: 5 values, expected 6 \(src, dst, t, label, f0"):
        list(open_stream(path))


@pytest.mark.parametrize(
    "make",
    [
        pa.table,
        pa.record_batch,
        lambda columns: Frame(pa.table(columns)),
        lambda columns: columns,
        lambda columns: {name: np.array(column) for name, column in columns.items()},
        lambda columns: {name: torch.tensor(column) for name, column in columns.items()},
        lambda columns: pa.table(columns).to_pylist(),
        lambda columns: iter(pa.table(columns).to_pylist()),
        lambda columns: SimpleNamespace(
            collect_schema=dict, collect=lambda: pa.table(columns)
        ),  # a lazy frame, such as those of polars
    ],
)
def test_in_memory_tables_are_read(make):
    columns = {"src": [7, 3], "dst": [3, 7], "t": [1, 2], "weight": [0.5, 2.0], "label": [1, 0]}
    source = open_stream(make(columns), features=["weight"], label="label")
    assert isinstance(source, Source)
    assert (source.num_events, source.x_dim, source.unit) == (2, 1, "s")
    assert rows(source) == [(7, 3, 1, 1, (0.5,)), (3, 7, 2, 0, (2.0,))]
    assert rows(source) == rows(source), "a source is read again from the start"


@pytest.mark.parametrize("x", [np.eye(2), torch.eye(2), [[1.0, 0.0], [0.0, 1.0]]])
def test_tuple_is_src_dst_t_and_features_that_may_be_lists(x):
    source = open_stream(([1, 2], np.array([3, 4]), torch.tensor([0, 0]), x))
    assert source.x_dim == 2
    assert torch.equal(concat(list(source)).x, torch.eye(2))


def test_ids_are_dense_in_order_of_appearance_and_kept_over_two_streams():
    ids = NodeIds()
    open_stream({"src": ["b"], "dst": ["a"], "t": [0]}, ids=ids)
    first = list(open_stream({"src": ["b"], "dst": ["a"], "t": [0]}, ids=ids))
    second = list(open_stream({"src": ["c"], "dst": ["b"], "t": [0]}, ids=ids))
    assert (first[0].src.tolist(), first[0].dst.tolist()) == ([0], [1])
    assert (second[0].src.tolist(), second[0].dst.tolist()) == ([2], [0])


def test_string_columns_of_every_arrow_type():
    names = pa.array(["a", "b"])
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        table = pa.table({"src": names.cast(kind), "dst": names, "t": [0, 1]})
        assert [row[0] for row in rows(open_stream(table))] == ["a", "b"]


def test_columns_are_chosen_by_name(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text('"to", from,when,w1,w2,other\n1,2,3,4,5,6\n')
    chosen = {"src": "from", "dst": "to", "t": "when", "label": "other"}
    assert rows(open_stream(path, **chosen, features="w")) == [(2, 1, 3, 6, (4.0, 5.0))]
    assert rows(open_stream(path, **chosen, features=["w2"])) == [(2, 1, 3, 6, (5.0,))]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (
            {},
            "there is no column 'src' or 'dst'; the columns are a, b, t, t: choose with src=... "
            "dst=... t=...",
        ),
        (
            {"src": "a", "dst": "b"},
            "2 columns are named 't'; give them names of their own: header=True "
            "columns='a,b,t,t.1', and choose with t=...",
        ),
        (
            {"src": "a", "dst": "b", "t": "b", "features": "f"},
            "no feature column starts with 'f'; the columns are a, b, t, t",
        ),
    ],
)
def test_missing_column_is_named_with_the_available_ones(tmp_path, schema, text):
    path = tmp_path / "events.csv"
    path.write_text("a,b,t,t\n1,2,3,4\n")
    with pytest.raises(StreamError) as caught:
        open_stream(path, **schema)
    assert str(caught.value) == f"{path}: {text}"


def test_folder_is_one_stream_in_order_of_name(tmp_path):
    for number, name in enumerate(["part-1.csv", "part-2.jsonl", "part-10.csv.gz", "part-11.csv"]):
        columns = {"src": [number], "dst": [9], "t": [number]} if number < 3 else {}
        columns = columns or {"src": [], "dst": [], "t": []}
        write_events(tmp_path / name, open_stream(columns))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden").touch()
    source = open_stream(tmp_path)
    assert [row[0] for row in rows(source)] == [0, 1, 2]
    assert (source.num_events, source.progress) == (None, 1.0)
    back = [tmp_path / "part-2.jsonl", tmp_path / "part-1.csv"]
    with pytest.raises(StreamError, match=r"part-1.csv, line 2: tick 0 comes after tick 1; "):
        list(open_stream(back))


def test_num_events_is_known_if_cheap(tmp_path):
    table = {"src": [1, 2], "dst": [3, 4], "t": [0, 1]}
    for ending, expected in (("parquet", 2), ("arrow", 2), ("csv", None), ("jsonl", None)):
        path = tmp_path / f"events.{ending}"
        write_events(path, open_stream(table))
        assert open_stream(path).num_events == expected
    assert open_stream([tmp_path / "events.parquet", tmp_path / "events.arrow"]).num_events == 4


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3)), max_size=30))
def test_sort_is_by_time_and_keeps_ties_in_order(events):
    columns = {"src": [s for s, _ in events], "dst": list(range(len(events)))}
    columns |= {"t": [t for _, t in events], "label": list(range(len(events)))}
    source = open_stream(columns, label="label", features=["t"], sort=True)
    expected = sorted(enumerate(events), key=lambda event: event[1][1])
    assert rows(source) == [(s, i, t, i, (float(t),)) for i, (s, t) in expected]


def test_unsupported_sources_list_the_supported_ones(tmp_path):
    for data in (3, [1, 2], [], ({1: 2}, 3), [{}, 7]):
        with pytest.raises(
            TypeError, match=r"cannot read events from [a-zA-Z]+; pass a path \(csv, tsv"
        ):
            open_stream(data)
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder 'nowhere\.csv'"):
        open_stream("nowhere.csv")
    with pytest.raises(StreamError, match="the folder holds no files"):
        open_stream(tmp_path)
    path = tmp_path / "events.xlsx"
    path.touch()
    expected = r"its name has no known ending \(known: .csv, .tsv, .parquet.*\); pass format=..."
    with pytest.raises(StreamError, match=expected):
        open_stream(path)
    with pytest.raises(ValueError, match=r"format must be one of csv, tsv, parquet.*, got 'excel'"):
        open_stream(path, format="excel")
    with pytest.raises(ValueError, match="id_kind must be one of int, string, got 'float'"):
        open_stream(path, id_kind="float")


def test_files_of_one_stream_must_agree(tmp_path):
    for name, x in (("a.jsonl", [1]), ("b.jsonl", [1, 2])):
        (tmp_path / name).write_text(f'{{"src": 1, "dst": 2, "t": 0, "x": {x}}}\n')
    with pytest.raises(StreamError, match=r"b.jsonl, line 1: x has 2 values, expected 1"):
        list(open_stream(tmp_path, features="x"))


def test_memory_is_bounded_by_the_block_not_the_file(tmp_path):
    path = tmp_path / "events.csv"
    line = "123456789,987654321,1700000000,0.25,0.5,0.75,1.0\n"
    path.write_text("src,dst,t,f0,f1,f2,f3\n" + line * 400_000)
    before, most, num_events = pa.total_allocated_bytes(), 0, 0
    source = open_stream(path, features="f")
    for batch in source:
        most = max(most, pa.total_allocated_bytes() - before)
        assert (len(batch) - 1) * len(line) <= 1 << 20
        num_events += len(batch)
        assert num_events * len(line) <= source.progress * path.stat().st_size + (1 << 20)
    assert num_events == 400_000
    assert most < 8 << 20
