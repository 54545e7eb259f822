"""File sources: repeated ids, positions of tables, odd first rows. Text: test_dialect.py."""

import gzip
import json
import threading

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from helpers.files import csv_of, flat, read, table_of
from tgflow.streams import FileSource, StreamError
from tgflow.streams.errors import SourceTruncated
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.ingest import Ingest


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_duplicate_event_ids_of_files_are_dropped(tmp_path, ending):
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
    found = FileSource(path, event_id="key")
    ingest = Ingest(found, OrderConfig(dedup_window=10))
    times = [t for events in ingest for t in events.t.tolist()]
    assert times == [0, 1, 4]
    counts = ingest.report()["counts"]
    assert (counts["duplicate"], counts["malformed"]) == (2, 1)


def test_progress_is_known_with_the_first_events_after_an_empty_poll(tmp_path, monkeypatch):
    path = tmp_path / "events.csv"
    path.write_text("src,dst,t\n1,2,3\n4,5,6\n")
    source = FileSource(path)
    poll, is_first = source.poll, iter([True])
    monkeypatch.setattr(source, "poll", lambda *a: [] if next(is_first, False) else poll(*a))
    ingest = Ingest(source, OrderConfig(), clock=lambda: 0.0)
    assert {ingest.progress for _ in ingest} == {1.0}


def test_invalid_event_id_column_or_value_is_an_error(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("src,dst,t\n1,2,3\n")
    with pytest.raises(StreamError, match=r"no column 'key'.*choose with event_id="):
        FileSource(path, event_id="key")
    table = {"src": [1], "dst": [2], "t": [3], "key": [0.5]}
    [arrivals] = read(FileSource(table, event_id="key"))
    [bad] = arrivals.bad()
    assert (bad.code, len(arrivals.events)) == ("type", 0)
    assert bad.text == "key is of type double; event ids are texts or integers"


@pytest.mark.parametrize("ending", ["parquet", "arrow", "stream"])
def test_resume_binary_files_from_every_position(tmp_path, ending, monkeypatch):
    monkeypatch.setattr("tgflow.streams.files.columnar.BATCH_ROWS", 100)
    path, table = tmp_path / "events", table_of(1000)
    if ending == "parquet":
        pa.parquet.write_table(table, path, row_group_size=250)
    elif ending == "arrow":
        pa.feather.write_feather(table, path, chunksize=250)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, 250)
    kind = "parquet" if ending == "parquet" else "arrow"
    polls = read(FileSource(path, format=kind))
    assert [row[3] for row in flat(polls)[0]] == list(range(1000))
    assert len(polls) > 5
    for i, poll in enumerate(polls):
        rest = flat(read(FileSource(path, format=kind), poll.position))
        assert rest == flat(polls[i + 1 :])


def test_resume_a_table_in_memory():
    table = table_of(200_000)
    first, *rest = read(FileSource(table))
    assert flat(read(FileSource(table), first.position)) == flat(rest)
    with pytest.raises(SourceTruncated, match="it has 10 rows, but had 200000 when it was read"):
        read(FileSource(table_of(10)), first.position)


def test_closing_stops_the_thread(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n" + csv_of(0, 5_000))
    before = threading.active_count()
    source = FileSource(path, block_bytes=1000)
    source.start({})
    assert source.poll({0}, 5)
    source.close()
    source.close()
    assert threading.active_count() == before
    assert len(flat(read(source))[0]) == 5_000, "it can be started again"


def test_bad_first_row_does_not_set_the_schema(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\nx,y,z\n1,2\n\xff\n1,2,3\n")
    source = FileSource(path)
    assert source.id_kind == "int"
    assert [code for _, code, _, _ in flat(read(source))[1]] == ["type", "schema", "encoding"]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'oops\n{"src": "a"}\n{"src": "a", "dst": "b", "t": 1, "x": [1, 2]}\n')
    source = FileSource(path, features="x", id_kind="string")
    assert source.x_dim == 2
    assert len(flat(read(source))[1]) == 2


def test_concatenated_gzip_members_are_one_text(tmp_path):
    path = tmp_path / "events.csv.gz"
    path.write_bytes(gzip.compress(b"src,dst,t\n1,2,3\n4,5,") + gzip.compress(b"6\n"))
    assert [row[3] for row in flat(read(FileSource(path)))[0]] == [3, 6]
