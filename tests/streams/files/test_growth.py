"""Growing files are read by whole lines; pipes are read like files."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from tgflow.streams import FileSource, StreamError, open_stream
from tgflow.streams.files import reader

HEADER = "src,dst,t\n"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(reader, "POLL_SECONDS", 0.002)


def times(source, count):
    """Return the times of the next `count` events."""
    found = []
    while len(found) < count:
        for polled in source.poll({0}, 5):
            found += polled.events.t.tolist()
    return found


def start_and_read(source, position):
    source.start({0: position})
    return times(source, 1)


def test_implausible_first_time_of_a_pipe_is_reported(monkeypatch, caplog):
    data = io.BytesIO((HEADER + "1,2,1600000000000\n").encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=data))
    with closing(FileSource("-", time_unit="s")) as source:
        source.start({})
        assert times(source, 1) == [1600000000000]
    assert caplog.messages == [
        "the first time, 1,600,000,000,000 s, is after 2100 if it counts from 1970: --time-unit ms?"
    ]


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def test_whole_lines_are_read_as_they_arrive(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "0,1,10\n0,1,1")
    source = FileSource(path, follow=True)
    source.start({})
    assert times(source, 1) == [10]
    assert source.poll({0}, 0.02) == [], "half a line is no row"
    assert source.ended() == set()
    append(path, "1\n0,1,12\n")
    assert times(source, 2) == [11, 12]
    source.close()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("name", "row", "options"), [
    ("a.csv", "0,1,10\n", {"header": False}), ("a.jsonl", '{"src": 0, "dst": 1, "t": 10}\n', {}),
])  # fmt: skip
def test_growing_files_without_a_header_begin_with_their_first_rows(tmp_path, name, row, options):
    (tmp_path / name).write_text(row * 3)
    with closing(FileSource(tmp_path / name, follow=True, **options)) as source:
        source.start({})
        assert times(source, 3) == [10] * 3


@pytest.mark.parametrize("num_rows", [0, 1])
def test_quoted_line_ends_of_a_growing_file_are_never_rows(tmp_path, num_rows):
    path, row = tmp_path / "a.csv", b'a,b,10,"x"\n'
    whole = b'src,dst,t,"no\nte"\n' + row * num_rows + b'a,"b\nEVIL,VICTIM,7,x\nc",11,x\n'
    path.write_bytes(whole[:17])

    def write():
        for byte in whole[17:]:
            time.sleep(0.004)
            with path.open("ab") as file:
                file.write(bytes([byte]))

    thread = threading.Thread(target=write)
    thread.start()
    source = FileSource(path, follow=True)
    source.start({})
    assert times(source, num_rows + 1) == [10] * num_rows + [11]
    thread.join()
    source.close()


def test_files_added_to_a_folder_are_read(tmp_path):
    (tmp_path / "part-1.csv").write_text(HEADER + "0,1,10")
    source = FileSource(tmp_path, follow=True)
    source.start({})
    assert times(source, 1) == [10]
    whole = tmp_path / ".part-2.csv"
    whole.write_text(HEADER + "0,1,11\n")
    whole.rename(tmp_path / "part-2.csv")
    assert times(source, 1) == [11]
    source.close()


def test_following_an_unsupported_source_is_refused(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(HEADER.encode()))
    with pytest.raises(ValueError, match="text files that are not compressed"):
        FileSource(path, follow=True)
    with pytest.raises(ValueError, match="a table does not grow"):
        FileSource({"src": [0], "dst": [1], "t": [2]}, follow=True)


def stdin_of(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_stdin_can_be_read_repeatedly_like_a_file(monkeypatch):
    stdin_of(monkeypatch, (HEADER + "7,8,10\n7,9,11").encode())
    stream = open_stream("-")
    for _ in range(2):
        assert [t for batch in stream for t in batch.t.tolist()] == [10, 11]
    stdin_of(monkeypatch, b'{"src": 7, "dst": 8, "t": 10}\n')
    assert [t for b in open_stream("-", format="jsonl") for t in b.t.tolist()] == [10]


def test_rows_of_stdin_are_delivered_before_its_end(monkeypatch):
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=os.fdopen(reading, "rb")))
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        pipe.write((HEADER + "7,8,10\n").encode())
        source = FileSource("-")
        source.start({})
        assert times(source, 1) == [10]
        pipe.write(b"7,8,11\n7,8,1")
        assert times(source, 1) == [11]
        pipe.write(b"2")
    assert times(source, 1) == [12]
    while source.ended() != {0}:
        source.poll({0}, 1)
    source.close()


def test_stdin_resumes_after_the_read_rows_are_repeated(monkeypatch):
    lines = HEADER + "".join(f"7,8,{t}\n" for t in range(100))
    stdin_of(monkeypatch, lines.encode())
    source = FileSource("-", block_bytes=200)
    source.start({})
    rows = source.poll({0}, 5)[0]
    source.close()
    done = len(rows.events)
    assert 0 < done < 100
    stdin_of(monkeypatch, lines.encode())
    again = FileSource("-", block_bytes=200)
    again.start({0: rows.position})
    assert times(again, 100 - done) == [*range(done, 100)]
    again.close()
    stdin_of(monkeypatch, lines.replace("7,8", "9,8").encode())
    other = FileSource("-", block_bytes=200)
    with pytest.raises(StreamError, match="it is another file"):
        start_and_read(other, rows.position)
