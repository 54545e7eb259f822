"""Files that change, grow or vanish while being read: detected and reported."""

import gzip

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from helpers.files import csv_of, flat, read, table_of
from tgflow.streams import FileSource, StreamError
from tgflow.streams.errors import SourceCorrupt, SourceExpired, SourceMismatch, SourceTruncated


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
