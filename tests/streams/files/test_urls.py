"""Streams at URLs: the same events as from a path, resumed positions, changed files, faults."""

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import tgflow as tg
from helpers.files import csv_of, flat, read, table_of
from helpers.s3 import s3_server
from tgflow.streams import open_files
from tgflow.streams.errors import SourceMismatch, SourceTruncated, SourceUnavailable, StreamError
from tgflow.streams.files import urls
from tgflow.streams.files.urls import UrlPath


@pytest.fixture(scope="module")
def s3():
    with pytest.MonkeyPatch.context() as patch, s3_server(patch) as server:
        yield server


class Folder:
    """A local folder, with the interface of the server."""

    def __init__(self, path):
        self.path = path

    def url(self, name):
        return f"file://{self.path / name}"

    def put(self, name, data):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture(params=["file", "s3"])
def place(request, tmp_path):
    if request.param == "file":
        yield Folder(tmp_path)
        return
    server = request.getfixturevalue("s3")
    server.faults.clear()
    yield server


def encoded(kind: str) -> bytes:
    text, table, out = b"src,dst,t\n" + csv_of(0, 100), table_of(100), io.BytesIO()
    if kind == "quoted.csv":
        return (
            b"note,src,dst,t\n"
            + b'"a\nEVIL,1,2,3\n""b",'
            + b'\n"x\r\ny",'.join(csv_of(0, 100).splitlines())
        )
    if kind == "csv":
        return text
    if kind == "csv.gz":
        return pa.compress(text, "gzip", asbytes=True)
    if kind == "parquet":
        pa.parquet.write_table(table, out)
    elif kind == "arrow":
        pa.feather.write_feather(table, out, compression="uncompressed")
    else:
        np.savez(out, **{name: table[name].to_numpy() for name in table.column_names})
    return out.getvalue()


@pytest.mark.parametrize("kind", ["csv", "quoted.csv", "csv.gz", "parquet", "arrow", "npz"])
def test_url_reads_the_events_of_the_path(place, tmp_path, kind):
    local = tmp_path / f"local.{kind}"
    local.write_bytes(encoded(kind))
    place.put(f"formats/events.{kind}", encoded(kind))
    there = list(tg.open_stream(place.url(f"formats/events.{kind}")))
    expected = list(tg.open_stream(local))
    assert [batch.t.tolist() for batch in there] == [batch.t.tolist() for batch in expected]
    assert sum(map(len, there)) == 100


def test_folder_at_a_url_is_read_in_order_of_names(place):
    for number in (10, 2, 1):
        place.put(f"folder/part-{number}.csv", b"src,dst,t\n1,2,%d\n" % number)
    place.put("folder/_SUCCESS", b"")
    assert [batch.t.tolist() for batch in tg.open_stream(place.url("folder"))] == [[1], [2], [10]]


def test_reading_continues_at_a_position(place):
    place.put("resume.csv", b"src,dst,t\n" + csv_of(0, 30_000))
    polls = read(open_files(place.url("resume.csv"), block_bytes=100_000))
    rest = flat(read(open_files(place.url("resume.csv")), polls[1].position))[0]
    done = sum(len(poll.events.t) for poll in polls[:2])
    assert [row[1] for row in rest] == list(range(done, 30_000))


def test_changed_file_is_refused_at_a_position(place):
    data = b"src,dst,t\n" + csv_of(0, 30_000)
    place.put("changed.csv", data)
    position = read(open_files(place.url("changed.csv"), block_bytes=100_000))[1].position
    place.put("changed.csv", data.replace(b"1", b"2"))
    with pytest.raises(SourceMismatch, match="it is another file"):
        read(open_files(place.url("changed.csv")), position)
    place.put("changed.csv", data[:1000])
    with pytest.raises(SourceTruncated, match="it has 1000 bytes, but had"):
        read(open_files(place.url("changed.csv")), position)


def test_file_replaced_during_the_read_is_refused(place):
    data = b"src,dst,t\n" + csv_of(0, 1000)
    place.put("replaced.csv", data)
    path = UrlPath(place.url("replaced.csv"))
    with path.open() as file:
        assert file.read(10) == data[:10]
        place.put("replaced.csv", data.replace(b"0", b"9"))
        if isinstance(place, Folder):  # its version is the time of modification
            os.utime(place.path / "replaced.csv", ns=(0, 1))
        with pytest.raises(SourceMismatch, match="it was replaced during the read"):
            path.open_native()


def test_missing_file_is_named(place):
    with pytest.raises(FileNotFoundError, match=r"missing\.csv"):
        tg.open_stream(place.url("missing.csv"))


@pytest.mark.slow
def test_failed_requests_are_repeated(s3, monkeypatch):
    monkeypatch.setattr(urls, "PAUSES", (0.01,) * 4)
    s3.faults.clear()
    s3.put("lost.csv", b"src,dst,t\n1,2,3\n")
    left = [None] * 2

    def loses(method: str, path: str) -> bool:
        return method == "GET" and path.endswith("lost.csv") and bool(left) and not left.pop()

    s3.faults.loses = loses
    assert [batch.t.tolist() for batch in tg.open_stream(s3.url("lost.csv"))] == [[3]]
    assert not left


@pytest.mark.slow
def test_unreachable_store_is_reported(s3, monkeypatch):
    monkeypatch.setattr(urls, "PAUSES", (0.01,))
    s3.faults.clear()
    s3.put("away.csv", b"src,dst,t\n1,2,3\n")
    path = UrlPath(s3.url("away.csv"))
    with path.open() as file:
        s3.faults.refuses = lambda method, path: method == "GET"
        with pytest.raises(SourceUnavailable, match="the store cannot be read"):
            file.read()
    s3.faults.clear()


def test_removed_file_in_a_stale_list_is_skipped(s3):
    s3.faults.clear()
    for name in ("a", "b"):
        s3.put(f"stale/{name}.csv", b"src,dst,t\n1,2,3\n")
    s3.faults.lists_are_stale = True
    assert len(list(tg.open_stream(s3.url("stale")))) == 2
    s3.system().delete_file("bucket/stale/b.csv")
    assert len(list(tg.open_stream(s3.url("stale")))) == 1
    s3.faults.clear()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://host/x.csv", "has an unknown scheme; files are paths or s3://"),
        ("s3://key:secret@bucket/x.csv", "a URL must not hold credentials"),
    ],
)
def test_unusable_url_is_refused(url, text):
    with pytest.raises(ValueError, match=text):
        tg.open_stream(url)


def test_single_object_cannot_be_followed(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"src,dst,t\n1,2,3\n")
    with pytest.raises(ValueError, match="local text files"):
        open_files(f"file://{tmp_path}/x.csv", follow=True)


def test_damaged_file_at_a_url_is_not_unavailable(place):
    place.put("damaged.parquet", b"PAR1 and nothing else PAR1")
    with pytest.raises(StreamError, match="not a readable Parquet file"):
        tg.open_stream(place.url("damaged.parquet"))
