"""The log reader returns written frames or raises a declared error for any bytes."""

import shutil
import struct
import time
import zlib
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from tgflow.checkpoint.durable.errors import LogCorrupt, LogVersion
from tgflow.checkpoint.durable.log import HEADER_BYTES, BadFrame, DurableLog, Header, decode, encode

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
