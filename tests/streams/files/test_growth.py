"""Files that grow, change or vanish while being read; pipes are read like files."""

import gzip
import io
import os
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from helpers.files import csv_of, flat, read, table_of
from tgflow.streams import FileSource, StreamError, open_stream
from tgflow.streams.errors import SourceCorrupt, SourceExpired, SourceMismatch, SourceTruncated
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


@pytest.fixture
def half_read(tmp_path):
    """Return a file of which some blocks have been read, its bytes, and the position."""
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n" + csv_of(0, 30_000))
    polls = read(FileSource(path, block_bytes=100_000))
    return path, path.read_bytes(), polls[1].position


def test_reading_continues_in_an_appended_file(half_read):
    path, data, position = half_read
    end = read(FileSource(path))[-1].position
    path.write_bytes(data + csv_of(30_000, 30_010))
    assert [row[1] for row in flat(read(FileSource(path), end))[0]] == list(range(30_000, 30_010))
    rest = flat(read(FileSource(path), position))[0]
    assert rest[-1][1] == 30_009


@pytest.mark.parametrize("added", [b"\n7,8,9\n", b"\r\n7,8,9\n"])
def test_unterminated_last_line_may_be_terminated_later(tmp_path, added):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n1,2,3\n4,5,6")
    poll = read(FileSource(path))[-1]
    path.write_bytes(path.read_bytes() + added)
    ((_, *event),), _ = flat(read(FileSource(path), poll.position))
    assert event == [7, 8, 9, ()]
    path.write_bytes(b"src,dst,t\n1,2,3\n4,5,67\n")
    with pytest.raises(SourceMismatch, match="line 3: the line was read during a write"):
        read(FileSource(path), poll.position)


def test_changed_file_is_a_mismatch(half_read):
    path, data, position = half_read
    assert position["byte"] > 150_000
    changed = bytearray(data)
    changed[position["byte"] - 10] ^= 1
    path.write_bytes(changed)
    with pytest.raises(SourceMismatch, match="differs from what was read; it is another file"):
        FileSource(path).start({0: position})


def test_shorter_file_is_reported_as_truncated(half_read):
    path, data, position = half_read
    for size in (position["byte"] - 1, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(SourceTruncated, match=rf"has {size} bytes, but had {len(data)} when"):
            FileSource(path).start({0: position})


def test_changed_compressed_file_is_detected(tmp_path):
    path = tmp_path / "events.csv.gz"
    data = b"src,dst,t\n" + csv_of(0, 30_000)
    path.write_bytes(gzip.compress(data, 0))
    position = read(FileSource(path, block_bytes=100_000))[1].position
    path.write_bytes(gzip.compress(data + csv_of(0, 5), 0))
    assert len(flat(read(FileSource(path), position))[0]) > 10_000
    path.write_bytes(gzip.compress(data[:1000] + b"9" * (len(data) - 1000) + b"\n", 0))
    with pytest.raises(SourceMismatch):
        FileSource(path).start({0: position})
    path.write_bytes(gzip.compress(data[:100_000], 0) + bytes(300_000))
    with pytest.raises((SourceTruncated, SourceCorrupt)):
        FileSource(path).start({0: position})


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_changed_binary_file_is_detected(tmp_path, ending):
    path = tmp_path / f"events.{ending}"
    write = pa.parquet.write_table if ending == "parquet" else pa.feather.write_feather
    write(table_of(70_000), path)
    position = read(FileSource(path))[0].position
    write(table_of(70_000).slice(1), path)
    with pytest.raises((SourceMismatch, SourceTruncated)):
        FileSource(path).start({0: position})
    write(table_of(90_000), path)
    with pytest.raises((SourceMismatch, SourceTruncated)):
        FileSource(path).start({0: position})


def write_parts(folder, *numbers):
    folder.mkdir(exist_ok=True)
    for i in numbers:
        (folder / f"part-{i}.csv").write_bytes(b"src,dst,t\n" + csv_of(i * 10, i * 10 + 10))


def test_reading_continues_with_later_sorted_files_of_a_folder(tmp_path):
    folder = tmp_path / "parts"
    write_parts(folder, 1, 2, 9)
    polls = read(FileSource(folder))
    assert len(polls) == 3
    write_parts(folder, 10, 11)
    late = flat(read(FileSource(folder), polls[-1].position))[0]
    assert [row[1] for row in late] == list(range(100, 120))
    (folder / "part-1.csv").unlink()
    middle = flat(read(FileSource(folder), polls[1].position))[0]
    assert [row[1] for row in middle] == [*range(90, 120)]


def test_missing_or_earlier_sorted_files_are_refused(tmp_path):
    folder = tmp_path / "parts"
    write_parts(folder, 1, 2)
    position = read(FileSource(folder))[-1].position
    write_parts(folder, 0)
    with pytest.raises(SourceMismatch, match=r"2 files sort before 'part-2.csv', but 1 "):
        FileSource(folder).start({0: position})
    (folder / "part-0.csv").unlink()
    (folder / "part-2.csv").unlink()
    with pytest.raises(SourceExpired, match=r"'part-2.csv' is gone"):
        FileSource(folder).start({0: position})
    listed = [folder / "part-1.csv"]
    with pytest.raises(SourceExpired, match=r"file 2, 'part-2.csv', no longer exists"):
        FileSource(listed).start({0: position})
    with pytest.raises(SourceMismatch, match=r"file 1 was 'part-2.csv'; give the same files"):
        FileSource(listed).start({0: position | {"file": 0}})


def test_gzip_bomb_is_refused(tmp_path):
    path = tmp_path / "events.csv.gz"
    path.write_bytes(gzip.compress(b"src,dst,t\n" + b"1,2,3\n" * 100_000))
    assert len(flat(read(FileSource(path)))[0]) == 100_000
    with pytest.raises(
        StreamError, match=r"more than 500,000 bytes; if it should, pass max_file_bytes='20GiB'"
    ):
        read(FileSource(path, max_file_bytes="500kB"))
