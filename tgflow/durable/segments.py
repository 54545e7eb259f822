"""Segments."""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa

from tgflow.durable import frames
from tgflow.durable.errors import WAY_OUT, LogCorrupt, LogVersion
from tgflow.durable.frames import BadFrame, Header


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """A place in the log, after a frame."""

    segment: int
    byte: int

    def to_json(self) -> dict[str, int]:
        """Return what `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, int]) -> LogPosition:
        """Return the position that `to_json` wrote.

        Raises:
            ValueError: If it is none.
        """
        place = tuple(value.get(name) for name in ("segment", "byte"))
        if any(type(x) is not int or x < 0 for x in place):
            raise ValueError(f"a log position has segment and byte, got {dict(value)}")
        return cls(value["segment"], value["byte"])


MAGIC = b"tgflog\r\n"
VERSION = 1
_FIELDS = struct.Struct("<8sIxxxxQQ")
HEADER_BYTES = _FIELDS.size + 4
_NAME = re.compile(r"(\d{10})\.log")


@dataclass(frozen=True, slots=True)
class Scan:
    """What a look through one segment found."""

    end: int
    cut: int
    problems: list[str]


def path_of(directory: Path, number: int) -> Path:
    """Return the file of segment `number`."""
    return directory / f"{number:010d}.log"


def numbers(directory: Path, needed: int, problems: list[str]) -> list[int]:
    """Return the numbers of the segments that are there, rising and without gaps."""
    names = (_NAME.fullmatch(entry.name) for entry in directory.iterdir())
    found = sorted(int(name[1]) for name in names if name)
    start = 0
    for i, (before, after) in enumerate(pairwise(found)):
        if after == before + 1:
            continue
        missing, there = path_of(directory, before + 1), path_of(directory, after).name
        wrong = f"{missing} is missing, but {there} is there"
        if after > needed:
            raise LogCorrupt(f"{wrong}; {WAY_OUT}")
        problems.append(wrong)
        start = i + 1
    return found[start:]


def header(number: int, previous_end: int) -> bytes:
    """Return the first bytes of a segment whose predecessor counts up to `previous_end`."""
    fields = _FIELDS.pack(MAGIC, VERSION, number, previous_end)
    return fields + struct.pack("<I", zlib.crc32(fields))


def read_header(path: Path, number: int) -> int:
    """Return up to which byte the predecessor of the segment in `path` counts."""
    with open_segment(path) as file:
        data = file.read(HEADER_BYTES)
    if len(data) < HEADER_BYTES or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise BadFrame("the segment's header is cut off or damaged")
    magic, version, found, previous_end = _FIELDS.unpack_from(data)
    if magic != MAGIC or found != number:
        raise BadFrame("the segment's header belongs elsewhere")
    if version != VERSION:
        raise LogVersion(f"{path} has version {version}, this tgflow reads {VERSION}")
    return int(previous_end)


def scan(path: Path, number: int, needed: int) -> Scan:
    """Look through the last segment for its end; at most one frame is in memory."""
    size, end, problems = path.stat().st_size, HEADER_BYTES, []
    with open_segment(path) as file:
        while end < size:
            try:
                header, _ = read_frame(file, number, end)
            except BadFrame as error:
                if end < needed <= size:
                    problems.append(f"{path} is damaged at byte {end}: {error}")
                    end = needed
                    continue
                _refuse_hole(file, path, number, end, str(error))
                break
            end = header.end
    return Scan(end, size - end, problems)


def was_synced(path: Path, number: int) -> bool:
    """Return whether a frame proves that the segment's beginning was on the disk."""
    with open_segment(path) as file:
        return any(frame.synced > 0 for frame in _good_frames(file, number, 0))


def read_frame(file: BinaryIO, number: int, byte: int) -> tuple[Header, bytes]:
    """Return header and checked body of the frame at `byte`."""
    file.seek(byte)
    head = frames.parse_header(file.read(frames.HEADER_BYTES), number, byte)
    if head.end > os.fstat(file.fileno()).st_size:
        raise BadFrame("the body is cut off")
    body = file.read(head.columns_bytes + head.footer_bytes)
    frames.check_body(head, body)
    return head, body


@contextmanager
def open_segment(path: Path) -> Iterator[BinaryIO]:
    """Open a plain file to read, never through a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _refuse_hole(file: BinaryIO, path: Path, number: int, bad: int, why: str) -> None:
    """Raise unless the bad frame at `bad` can be what a crash left."""
    for good in _good_frames(file, number, bad + 1):
        if good.synced > bad:
            raise LogCorrupt(
                f"{path} is damaged at byte {bad} ({why}), before a good frame at {good.byte}; "
                f"{WAY_OUT}"
            )


def _good_frames(file: BinaryIO, number: int, start: int) -> Iterator[Header]:
    """Yield the headers of frames from `start` on, which need not be where one begins."""
    for byte in _magics(file, start):
        with suppress(BadFrame):
            yield read_frame(file, number, byte)[0]


def _magics(file: BinaryIO, start: int, chunk: int = 1 << 20) -> Iterator[int]:
    """Yield where the bytes that begin a frame occur from `start` on."""
    while True:
        file.seek(start)
        data = file.read(chunk)
        at = data.find(frames.MAGIC)
        while at >= 0:
            yield start + at
            at = data.find(frames.MAGIC, at + 1)
        if len(data) < chunk:
            return
        start += chunk - len(frames.MAGIC) + 1


Frame: TypeAlias = tuple[pa.RecordBatch, dict[str, Any], LogPosition]
"""Rows, footer, and the place after the frame."""


def frames_between(directory: Path, start: LogPosition, end: LogPosition) -> Iterator[Frame]:
    """Yield the frames from `start` up to `end`."""
    number, byte = start.segment, start.byte
    while number <= end.segment:
        stop = end.byte if number == end.segment else segment_end(directory, number)
        yield from _segment_frames(directory, number, byte, stop)
        # frames that were moved to the next segment kept their order and their sizes
        byte = HEADER_BYTES + max(byte - stop, 0)
        number += 1


def forward(directory: Path, place: LogPosition, last: int) -> LogPosition:
    """Return where the frames after `place` begin: in a later segment if its own ends there."""
    number, byte = place.segment, place.byte
    while number < last and byte >= (stop := segment_end(directory, number)):
        # frames that were moved to the next segment kept their order and their sizes
        number, byte = number + 1, HEADER_BYTES + byte - stop
    return LogPosition(number, byte)


def segment_end(directory: Path, number: int) -> int:
    """Return up to which byte the older segment `number` counts."""
    path = path_of(directory, number + 1)
    try:
        return read_header(path, number + 1)
    except (BadFrame, FileNotFoundError) as error:
        raise LogCorrupt(f"{path} is damaged or missing: {error}; {WAY_OUT}") from None


def _segment_frames(directory: Path, number: int, byte: int, stop: int) -> Iterator[Frame]:
    path = path_of(directory, number)
    if byte >= stop:
        return
    try:
        with open_segment(path) as file:
            while byte < stop:
                header, body = read_frame(file, number, byte)
                byte = header.end
                yield *frames.decode(header, body), LogPosition(number, byte)
    except (BadFrame, FileNotFoundError) as error:
        raise LogCorrupt(f"{path} is damaged at byte {byte}: {error}; {WAY_OUT}") from None
