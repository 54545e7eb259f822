"""Dead letters: complete, once each, never lost silently."""

import base64
import errno
import hashlib
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import faults
from helpers.forged import flip_bit
from tgflow.streams import FileSource
from tgflow.streams.errors import TooManyBadRecords
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.dead_letters import DeadLetterFiles, letter_of
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.rows.row_batch import BadRow, Origin


def bad_row(i):
    return BadRow(i, "type", f"row {i}", Origin({"file": "events.csv", "byte": i}, b"1,x,3"))


def write(letters, *numbers):
    letters.write("events.csv", [bad_row(i) for i in numbers])


def entries(directory):
    files = sorted(directory.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def places(directory):
    return [entry["place"]["byte"] for entry in entries(directory)]


@pytest.fixture(autouse=True)
def _disarm():
    yield
    faults.arm("")


def test_dead_letter_contains_location_and_reason_of_its_row(tmp_path):
    raw = bytes(range(256)) * 40
    letters = DeadLetterFiles(tmp_path / "letters")
    origin = Origin({"topic": "a", "offset": 7}, raw)
    letters.write("s", [BadRow(0, "type", "x" * 500, origin)])
    letters.close()
    (entry,) = entries(tmp_path / "letters")
    assert entry == {
        "source": "s",
        "place": {"topic": "a", "offset": 7},
        "code": "type",
        "message": "x" * 197 + "...",
        "num_bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "raw": base64.b64encode(raw[:4096]).decode(),
    }


def test_dead_letters_contain_no_control_characters(tmp_path):
    text = "\x1b[2J\x07\r\n\u202eevil\ud800é"
    letters = DeadLetterFiles(tmp_path / "letters")
    origin = Origin({"file": text}, text.encode(errors="replace"))
    letters.write(text, [BadRow(0, "type", text, origin)])
    letters.close()
    data = (tmp_path / "letters" / "000000.jsonl").read_bytes()
    assert all(32 <= byte < 127 for byte in data.removesuffix(b"\n"))
    message = entries(tmp_path / "letters")[0]["message"]
    assert message == r"\x1b[2J\x07\r\n\u202eevil\ud800é"


@given(
    st.lists(st.one_of(st.integers(0, 3), st.just("mark"), st.just("crash")), max_size=20),
    st.integers(1, 900),
)
def test_each_dead_letter_is_written_once_after_any_crash(tmp_path_factory, steps, segment_bytes):
    directory = tmp_path_factory.mktemp("run") / "letters"
    letters = DeadLetterFiles(directory, segment_bytes=segment_bytes)
    marked, mark, written = 0, letters.length, 0
    for step in steps:
        if step == "mark":
            letters.sync()
            marked, mark = written, letters.length
        elif step == "crash":
            letters = DeadLetterFiles(directory, segment_bytes=segment_bytes)
            letters.rewind(mark)
            written = marked
        else:
            write(letters, *range(written, written + step))
            written += step
    letters.close()
    assert places(directory) == list(range(written))


POINTS = ["before_write", "after_write", "before_sync", "after_sync"]


@pytest.mark.parametrize("kind", ["enospc", "eio"])
@pytest.mark.parametrize("point", POINTS)
def test_failed_sink_raises_and_stays_failed(tmp_path, point, kind):
    letters = DeadLetterFiles(tmp_path / "letters")
    write(letters, 0)
    letters.sync()
    before = letters.length
    faults.arm(f"letters.{point}:1:{kind}")
    with pytest.raises(OSError, match=os.strerror(getattr(errno, kind.upper()))):
        write_one(letters)
    with pytest.raises(OSError, match="dead letters could not be written before"):
        write_one(letters)
    letters.close()
    again = DeadLetterFiles(tmp_path / "letters")
    again.rewind(before)
    write_one(again)
    again.close()
    assert places(tmp_path / "letters") == [0, 1]


def write_one(letters):
    write(letters, 1)
    letters.sync()


def test_unwritable_directory_is_an_os_error(tmp_path):
    (tmp_path / "letters").write_text("no directory")
    with pytest.raises(OSError, match="Not a directory"):
        DeadLetterFiles(tmp_path / "letters")
    with pytest.raises(OSError, match="No such file"):
        DeadLetterFiles(tmp_path / "nowhere" / "letters")


def test_missing_dead_letters_are_reported_and_a_new_file_started(tmp_path, caplog):
    letters = DeadLetterFiles(tmp_path / "letters")
    write(letters, 0, 1)
    letters.close()
    length = letters.length
    file = tmp_path / "letters" / "000000.jsonl"
    for size, kept in ((length["byte"] - 1, 1), (0, 0)):
        file.write_bytes(b"".join(letter_of("events.csv", bad_row(i)) for i in (0, 1))[:size])
        letters = DeadLetterFiles(tmp_path / "letters")
        letters.rewind(length)
        assert "dead letters are missing" in caplog.text
        assert (letters.length["segment"], letters.length["byte"]) == (1, 0)
        assert places(tmp_path / "letters") == [0][:kept]


def test_limit_on_bad_rows_acts_within_a_block(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"src,dst,t\n" + b"x\n" * 6_000)
    letters = DeadLetterFiles(tmp_path / "letters")
    ingest = Ingest(FileSource(path), OrderConfig(), letters=letters, max_bad_ratio=0.05)
    with pytest.raises(TooManyBadRecords, match="501 of the last 501 rows are bad"):
        list(ingest)
    letters.close()
    assert len(entries(tmp_path / "letters")) == 501


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_flipped_bit_in_covered_dead_letters_is_reported_once(tmp_path, caplog, damaged):
    directory = tmp_path / "letters"
    letters = DeadLetterFiles(directory, segment_bytes=400)
    for i in range(5):
        write(letters, i)
    letters.close()
    length = letters.length
    write(letters, 5)  # after the checkpoint
    letters.close()
    file = directory / f"{damaged:06}.jsonl"
    file.write_bytes(flipped := flip_bit(file.read_bytes(), 77))
    letters = DeadLetterFiles(directory, segment_bytes=400)
    letters.rewind(length)
    assert file.read_bytes() == flipped  # as it may be another file
    assert [record.getMessage() for record in caplog.records] == [
        f"{file} is damaged: its dead letters are not those that were written"
    ]
    write_one(letters)
    letters.close()
    caplog.clear()
    DeadLetterFiles(directory).rewind(letters.length)
    assert not caplog.records


def test_removed_file_of_dead_letters_is_not_missed(tmp_path, caplog):
    directory = tmp_path / "letters"
    letters = DeadLetterFiles(directory, segment_bytes=400)
    for i in range(5):
        write(letters, i)
    letters.close()
    (directory / "000000.jsonl").unlink()
    again = DeadLetterFiles(directory, segment_bytes=400)
    again.rewind(letters.length)
    assert again.length["byte"] == letters.length["byte"]
    assert not caplog.records


def test_older_files_are_removed_and_the_others_continue_after_a_crash(tmp_path, caplog):
    letters = DeadLetterFiles(tmp_path, segment_bytes=400, keep=2)
    for i in range(8):
        write(letters, i)
    mark, kept = letters.length, places(tmp_path)
    assert 2 <= len(kept) < 8
    assert kept == [*range(8 - len(kept), 8)]
    write(letters, 8)
    again = DeadLetterFiles(tmp_path, segment_bytes=400, keep=2)
    again.rewind(mark)
    write(again, 9)
    assert places(tmp_path)[-2:] == [7, 9]
    assert len([*tmp_path.iterdir()]) == 2
    assert not caplog.records
