"""The durable log returns appended rows after crashes, faults and damage, or a declared error."""

import json
import shutil
import struct
import time
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import crash_states, faults
from helpers.effort import IS_QUICK, tries
from tgflow.checkpoint.durable.errors import DiskFull, Fenced, LogCorrupt, LogVersion
from tgflow.checkpoint.durable.fs import RealFs
from tgflow.checkpoint.durable.lock import RunLock
from tgflow.checkpoint.durable.log import (
    HEADER_BYTES,
    BadFrame,
    DurableLog,
    Header,
    LogPosition,
    decode,
    encode,
    read_written,
    rewrite,
)


@contextmanager
def armed(spec):
    faults.arm(spec)
    try:
        yield
    finally:
        faults.arm("")


def rows_of(first, count):
    ids = np.arange(first, first + count)
    x = pa.array([[float(i), -1.0] for i in ids], pa.list_(pa.float32(), 2))
    return pa.record_batch({"seq": ids, "t": ids * 10, "x": x})


def frames_of(log, start=None):
    return [(rows["seq"].to_pylist(), footer) for rows, footer, _ in log.read(start)]


def fill(log, count, rows=3):
    return [log.append(rows_of(i * rows, rows), {"n": i}) for i in range(count)]


def expected(count, rows=3, first=0):
    return [(list(range(i * rows, (i + 1) * rows)), {"n": i}) for i in range(first, count)]


@given(
    sizes=st.lists(st.integers(0, 40), max_size=12),
    segment_bytes=st.integers(100, 4000),
    reopen=st.sets(st.integers(0, 12)),
    start=st.integers(0, 12),
)
def test_log_behaves_like_a_list(tmp_path_factory, sizes, segment_bytes, reopen, start):
    directory = tmp_path_factory.mktemp("log")
    settings = {"segment_bytes": segment_bytes, "sync_ms": 0 if start % 2 else 1e6}
    log, reference, places = DurableLog(directory, **settings), [], [None]
    for i, size in enumerate(sizes):
        places.append(log.append(rows_of(len(reference), size), {"i": i}))
        reference.append((list(range(len(reference), len(reference) + size)), {"i": i}))
        if i in reopen:
            log.close()
            log = DurableLog(directory, **settings)
    first = min(start, len(sizes))
    assert frames_of(log, places[first]) == reference[first:]
    if first:
        log.drop_before(places[first])
        assert frames_of(log, places[first]) == reference[first:]
    log.close()


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    segment_bytes=st.integers(100, 4000),
    cuts=st.lists(st.floats(0, 1), max_size=8),
)
def test_reader_of_another_process_sees_complete_frames_once(
    tmp_path_factory, sizes, segment_bytes, cuts
):
    directory = tmp_path_factory.mktemp("log")
    place, found, reference = LogPosition(0, HEADER_BYTES), [], []
    with DurableLog(directory, segment_bytes=segment_bytes) as log:
        for i, size in enumerate(sizes):
            log.append(rows_of(len(reference), size), {"i": i})
            reference.append((list(range(len(reference), len(reference) + size)), {"i": i}))
            last = directory / f"{log.end.segment:010d}.log"
            whole = last.read_bytes()
            for cut in sorted(cuts):  # as while the frame is written
                last.write_bytes(whole[: int(cut * len(whole))])
                for rows, footer, end in read_written(directory, place):
                    found.append((rows["seq"].to_pylist(), footer))
                    place = end
                assert found == reference[: len(found)]
                last.write_bytes(whole)
            if i % 3 == 2 or i == len(sizes) - 1:
                for rows, footer, end in read_written(directory, place):
                    found.append((rows["seq"].to_pylist(), footer))
                    place = end
                assert found == reference


def test_torn_tail_is_truncated(tmp_path):
    with DurableLog(tmp_path) as log:
        places = fill(log, 3)
    file = tmp_path / "0000000000.log"
    data = file.read_bytes()
    for size in range(places[1].byte + 1, len(data), 7 if IS_QUICK else 1):
        file.write_bytes(data[:size])
        with DurableLog(tmp_path) as log:
            assert log.end == places[1]
            assert file.stat().st_size == places[1].byte
    file.write_bytes(data + bytes(5000))
    with DurableLog(tmp_path) as log:
        assert log.end == places[2]
        log.append(rows_of(9, 3), {"n": 3})
        assert frames_of(log) == expected(4)


def test_damage_in_the_middle_is_refused(tmp_path):
    with DurableLog(tmp_path, sync_ms=0) as log:
        places = fill(log, 3)
    file = tmp_path / "0000000000.log"
    data = file.read_bytes()
    for place in range(places[0].byte, places[1].byte, 3 if IS_QUICK else 1):
        file.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(LogCorrupt, match=f"damaged at byte {places[0].byte}"):
            DurableLog(tmp_path)


def test_damage_before_the_needed_position_is_ignored(tmp_path):
    with DurableLog(tmp_path, sync_ms=0) as log:
        places = fill(log, 4)
    file = tmp_path / "0000000000.log"
    data = file.read_bytes()
    for place in (3, 40, 150, places[1].byte - 1):
        file.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with DurableLog(tmp_path, needed=places[1]) as log:
            assert frames_of(log, places[1]) == expected(4, first=2)
            assert log.end == places[3]
        with pytest.raises(LogCorrupt, match=r"is damaged.*another --out"):
            DurableLog(tmp_path, needed=None)
    place = places[1].byte + 70
    file.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
    with pytest.raises(LogCorrupt, match="is damaged at byte"):
        DurableLog(tmp_path, needed=places[1])


ERRORS = {"enospc": DiskFull, "eio": OSError, "raise": faults.InjectedFault}


@pytest.mark.parametrize("sync_ms", [0, 1e9])
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("at", ["before_append", "after_append", "before_sync", "after_sync"])
def test_failed_append_leaves_no_rows(tmp_path, at, kind, sync_ms):
    log = DurableLog(tmp_path, sync_ms=sync_ms)
    places = fill(log, 2)
    # what an fsync left behind is written to a new segment, so that one must fail as well
    with armed(f"log.{at}:1:{kind},log.before_create:1:{kind}"), pytest.raises(ERRORS[kind]):
        log.append(rows_of(6, 3), {"n": 2}) if "append" in at or not sync_ms else log.sync()
    places += [log.append(rows_of(i * 3, 3), {"n": i}) for i in (2, 3)]
    for again in (False, True):
        for first, place in enumerate([None, *places]):
            assert frames_of(log, place) == expected(4, first=first)
        if not again:
            log.close()
            log = DurableLog(tmp_path)
    log.close()


@pytest.mark.parametrize("kind", ["enospc", "eio"])
def test_failed_sync_is_not_repeated_on_the_same_file(tmp_path, kind):
    log = DurableLog(tmp_path, sync_ms=1e9)
    places = fill(log, 3)
    with armed(f"log.before_sync:1:{kind}"):
        log.sync()
    assert log.end.segment == 1
    assert (tmp_path / "0000000000.log").stat().st_size == HEADER_BYTES
    for first, place in enumerate([None, *places]):
        assert frames_of(log, place) == expected(3, first=first)
        if place is not None:  # a reader that had read what moved to the next segment
            read = read_written(tmp_path, place)
            assert [footer["n"] for _, footer, _ in read] == list(range(first, 3))
    log.close()


# Checked while it is opened


@pytest.mark.parametrize("frame", [6, 19])
def test_damage_after_the_needed_position_is_refused_on_open(tmp_path, frame):
    with DurableLog(tmp_path, segment_bytes=1500) as log:
        places = fill(log, 20)
        log.sync()
        log.append(rows_of(60, 3), {"n": 20})  # records that earlier frames were durable
    end = places[frame]
    path = tmp_path / f"{end.segment:010d}.log"
    data = bytearray(path.read_bytes())
    data[end.byte - 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogCorrupt, match="is damaged at byte"):
        DurableLog(tmp_path, needed=places[2])
    assert path.read_bytes() == data


def take_over(path, token):
    """Take the lock in `path` as another machine does."""
    note = {"pid": 1, "host": "h1", "machine": "another", "since": "2026", "token": token}
    path.write_text(json.dumps(note))


def test_fenced_writer_cannot_append_and_its_late_frames_are_not_read(tmp_path):
    path, segment = tmp_path / ".lock", tmp_path / "log" / "0000000000.log"
    old = RunLock(path)
    log = DurableLog(tmp_path / "log", lock=old)
    fill(log, 2)
    take_over(path, 0)
    new = RunLock(path, lease=0.1)
    assert new.token == 1
    with DurableLog(tmp_path / "log", lock=new) as continued:
        with segment.open("ab") as late:  # a write that had passed its check
            late.write(segment.read_bytes()[HEADER_BYTES:])
        for act in (lambda: fill(log, 1), lambda: log.drop_before(log.end)):
            old._checked_at = 0.0
            with pytest.raises(Fenced, match="was taken over by process"):
                act()
        continued.append(rows_of(6, 3), {"n": 2})
        assert frames_of(continued) == expected(3)
    with DurableLog(tmp_path / "log", lock=new) as reopened:
        assert frames_of(reopened) == expected(3)
        assert reopened.end.segment == 1, "the same holder begins no other segment"
    old.release()
    new.release()


def test_rewritten_log_has_the_frames_after_each_position(tmp_path):
    """Also of segments that end early, and of one that a crash has left half written."""
    with DurableLog(tmp_path / "log", segment_bytes=1_500) as log:
        places = [log.append(*crash_states.frame(n)) for n in range(12)]
    assert places[-1].segment > 1
    with (tmp_path / f"log/{places[-1].segment:010d}.log").open("ab") as file:
        file.write(b"half a frame")
    (tmp_path / "new").mkdir()
    change = lambda rows, footer: (rows, {"n": footer["n"], "more": "x" * footer["n"]})  # noqa: E731
    moved = rewrite(RealFs(), tmp_path / "log", tmp_path / "new", change)
    for n, place in enumerate(places):
        with DurableLog(tmp_path / "new", needed=moved(place)) as log:
            found = [*log.read(moved(place))]
        assert [footer["n"] for _, footer, _ in found] == [*range(n + 1, 12)]
        assert all(rows.equals(crash_states.frame(footer["n"])[0]) for rows, footer, _ in found)
    with pytest.raises(LogCorrupt, match="has no frame that ends at"):
        moved(LogPosition(0, 99))


GOLDEN = Path(__file__).parent / "golden" / "log-3"
FUZZ = settings(
    max_examples=tries(150), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NUM_FRAMES = 6


def golden_frame(i):
    """Return frame `i` of the golden log, which is in two segments."""
    rows = pa.record_batch(
        {
            "seq": pa.array([i, i + 1], pa.int64()),
            "label": pa.array([0, 1], pa.int32()),
            "x": pa.array([[0.5, float(i)], [-1.0, 2.0]], pa.list_(pa.float32(), 2)),
        }
    )
    return rows, {"n": i, "positions": {"0": {"offset": 10 * i}}}


def read(directory):
    with DurableLog(directory) as log:
        return [(rows, footer) for rows, footer, _ in log.read()]


def copied(tmp_path):
    shutil.rmtree(tmp_path / "log", ignore_errors=True)
    shutil.copytree(GOLDEN, tmp_path / "log")
    return tmp_path / "log"


def check_beginning(found):
    """Assert that the frames are a prefix of the golden log."""
    for i, (rows, footer) in enumerate(found):
        assert (rows.equals(golden_frame(i)[0]), footer) == (True, golden_frame(i)[1])


@given(data=st.data())
@FUZZ
def test_fuzzed_logs_give_a_prefix_or_a_declared_error(tmp_path, data):
    directory = copied(tmp_path)
    file = directory / data.draw(st.sampled_from(["0000000000.log", "0000000001.log"]))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    file.write_bytes(content)
    start = time.perf_counter()
    with suppress(LogCorrupt, LogVersion):
        check_beginning(found := read(directory))
        if file.name == "0000000000.log":  # only the end of the last segment can be torn
            assert len(found) == NUM_FRAMES
    assert time.perf_counter() - start < 5  # on a busy machine


@given(data=st.data())
@FUZZ
def test_fuzzed_bodies_with_valid_checksums_raise_a_declared_error(data):
    """Mutations with recomputed checksums."""
    body = encode(*golden_frame(3))
    content = bytearray(body.data)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    content = bytes(content)
    footer_bytes = data.draw(st.integers(0, len(content)))
    head = Header(36, 36, len(content) - footer_bytes, footer_bytes, zlib.crc32(content))
    try:
        rows, footer = decode(head, content)
    except BadFrame:
        return
    assert isinstance(footer, dict)
    assert rows.num_rows >= 0


def test_length_of_one_tebibyte_is_not_allocated(tmp_path):
    directory = copied(tmp_path)
    at = HEADER_BYTES
    file = directory / "0000000001.log"
    content = bytearray(file.read_bytes())
    struct.pack_into("<Q", content, at + 12, 1 << 40)
    header = content[at : at + HEADER_BYTES - 4]
    struct.pack_into("<I", content, at + len(header), zlib.crc32(header))
    file.write_bytes(content)
    found = read(directory)
    assert len(found) == NUM_FRAMES - 1
    check_beginning(found)


@pytest.mark.parametrize("at", [0, HEADER_BYTES])
def test_log_of_a_newer_version_is_refused_and_unchanged(tmp_path, at):
    directory = copied(tmp_path)
    file = directory / "0000000001.log"
    content = bytearray(file.read_bytes())
    struct.pack_into("<H", content, at + 4, 4)
    end = at + HEADER_BYTES - 4
    struct.pack_into("<I", content, end, zlib.crc32(content[at:end]))
    file.write_bytes(content)
    with pytest.raises(LogVersion, match="version 4, this tgflow reads 3"):
        read(directory)
    assert file.read_bytes() == content
