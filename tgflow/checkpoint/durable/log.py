"""Durable log: rows in arrival order, in frames that are written atomically and survive crashes.

It is a folder of segments `0000000000.log`, `0000000001.log`, ...; a segment is a header followed
by frames. A frame is a header, rows as an Arrow stream, and a footer in JSON. The header of a
segment is that of a frame without a body; its `synced` is the end of the previous segment, and its
`crc` the fencing token of its writer. A writer with a larger token begins a segment, so that frames
that an earlier writer still appends to the previous one are never read.
"""

from __future__ import annotations

import json
import os
import re
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import pyarrow as pa

from tgflow.checkpoint.durable.errors import FULL, WAY_OUT, DiskFull, Fenced, LogCorrupt, LogVersion
from tgflow.checkpoint.durable.fs import RealFs, make_directories
from tgflow.checkpoint.durable.lock import RunLock

UNSYNCED_BYTES = 64 << 20
"""Maximum bytes of unsynced frames kept in memory; above it they are synced."""
MAX_BODY_BYTES = 1 << 30
"""Maximum bytes of a frame: a larger length is damage, and more rows must be split."""
MAGIC = b"tgF\xf1"
VERSION = 3
_FIELDS = struct.Struct("<4sHxxIQQQQI")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CRC.size
_NAME = re.compile(r"(\d{10})\.log")


class BadFrame(ValueError):
    """Raised for bytes that are not a frame written for this place."""


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """Position in the log, after a frame."""

    segment: int
    byte: int

    def to_json(self) -> dict[str, int]:
        """Return the position as JSON, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, int]) -> LogPosition:
        """Return the position for a result of `to_json`."""
        place = tuple(value.get(name) for name in ("segment", "byte"))
        if any(type(x) is not int or x < 0 for x in place):
            raise ValueError(f"a log position needs segment and byte, got {dict(value)}")
        return cls(value["segment"], value["byte"])


Frame: TypeAlias = tuple[pa.RecordBatch, dict[str, Any], LogPosition]
"""Rows, footer, and the position after the frame."""


class Body(NamedTuple):
    """A frame's serialized rows and footer, without a position."""

    data: bytes | memoryview
    footer_bytes: int
    crc: int


class Header(NamedTuple):
    """Header of a frame."""

    byte: int
    synced: int
    """Byte of its segment up to which everything was synced when it was written."""
    columns_bytes: int
    footer_bytes: int
    crc: int

    @property
    def end(self) -> int:
        """The byte after the frame."""
        return self.byte + HEADER_BYTES + self.columns_bytes + self.footer_bytes


class DurableLog(AbstractContextManager["DurableLog"]):
    """A log in a directory, appended to by one process (see `RunLock`).

    Opening recovers: a partial frame left by a crash is truncated. `append`, `sync`, `drop_before`
    and `read`, which returns complete frames only, may be called from several threads.

    Args:
        segment_bytes: Size of a segment at which a new one is started.
        sync_ms: Maximum time between two syncs while frames are appended; 0 syncs every frame.
        needed: Position from which frames will be read, that of a checkpoint; None for all.
            They are verified; damage or gaps before it are tolerated. An empty log begins right
            after it.
        lock: Lock of the run, which another machine may take over; None: there is no other writer.

    Raises:
        LogCorrupt: If synced frames are damaged or missing.
        LogVersion: If another tgflow version wrote it.
        OSError: If the directory cannot be created, read or written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        fs: RealFs | None = None,
        segment_bytes: int = 256 << 20,
        sync_ms: float = 100,
        needed: LogPosition | None = None,
        lock: RunLock | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._run_lock = lock
        self._token = 0 if lock is None else lock.token
        self._fs: RealFs = RealFs() if fs is None else fs
        self._segment_bytes = segment_bytes
        self._sync_seconds = sync_ms / 1e3
        self._lock = threading.RLock()
        self._fd: int | None = None
        self._unsynced: deque[Body] = deque()
        self._unsynced_bytes = 0
        self._synced_at = time.monotonic()
        self._broken = False
        self._recover(needed)

    @property
    def end(self) -> LogPosition:
        """Position after the last frame."""
        with self._lock:
            return LogPosition(self._number, self._size)

    @property
    def is_whole(self) -> bool:
        """Whether it still has its very first frame and all later ones."""
        with self._lock:
            return self._first == 0

    @property
    def num_bytes(self) -> int:
        """Size of all segments."""
        with self._lock:
            older = range(self._first, self._number)
            return sum(self._path(number).stat().st_size for number in older) + self._size

    def append(self, rows: pa.RecordBatch, footer: Mapping[str, Any]) -> LogPosition:
        """Append a frame and return the position after it.

        It is readable at once, and survives the process; it survives the machine after the next
        sync. If this raises, the frame is not in the log, and the next `append` continues after the
        previous one.

        Args:
            rows: Rows, possibly none, with any columns.
            footer: JSON-serializable values.

        Raises:
            DiskFull: If there is no space.
            Fenced: If another machine has taken over the run.
            OSError: On a disk error.
            ValueError: If the frame is too large, or the footer is not JSON.
        """
        body = encode(rows, footer)
        self._check_lock()
        with self._lock, _report_full_disk(self.directory):
            self._reopen()
            if self._size >= self._segment_bytes:
                self._roll()
            self._append(body)
            return self.end

    def sync(self) -> None:
        """Sync all frames to disk; after DiskFull, unsynced ones are kept for the next attempt."""
        with self._lock, _report_full_disk(self.directory):
            self._reopen()
            self._sync()

    def read(self, start: LogPosition | None = None) -> Iterator[Frame]:
        """Yield rows, footer and end position of each frame from `start`, a frame's end, on.

        Raises LogCorrupt if the log begins after `start` or ends before it; during iteration, if a
        frame is damaged.
        """
        with self._lock:
            begin = LogPosition(self._first, HEADER_BYTES) if start is None else self._locate(start)
            return self._frames(begin, self.end)

    def drop_before(self, position: LogPosition) -> None:
        """Remove the segments that hold only frames before `position`, once it is synced."""
        self._check_lock(now=True)
        with self._lock:
            if position > LogPosition(self._number, self._synced):
                self.sync()
            while self._first < min(position.segment, self._number):
                self._fs.unlink(self._path(self._first))
                self._first += 1
                self._fs.sync_directory(self.directory)  # so that a crash leaves no gap

    def close(self) -> None:
        """Sync and close; if that raises, frames since the last sync may be lost. Idempotent."""
        with self._lock:
            if self._fd is None and not self._broken:
                return
            try:
                self.sync()
            finally:
                self._close_file()
                self._broken = False

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_lock(self, *, now: bool = False) -> None:
        if self._run_lock is not None:
            self._run_lock.check(now=now)

    # Reading

    def _path(self, number: int) -> Path:
        return path_of(self.directory, number)

    def _locate(self, place: LogPosition) -> LogPosition:
        """Return where the frames after `place` begin: in a later segment if its own ends there."""
        number, byte, end = place.segment, place.byte, self.end
        while self._first - 1 <= number < end.segment and byte >= (stop := self._end_of(number)):
            # frames moved to the next segment keep their order and sizes
            number, byte = number + 1, HEADER_BYTES + byte - stop
        if number < self._first or (number, byte) > (end.segment, end.byte):
            raise LogCorrupt(
                f"{self.directory} holds frames from segment {self._first} to byte {end.byte} of "
                f"segment {end.segment}, but byte {place.byte} of segment {place.segment} is asked "
                "for: the log is not of this checkpoint, or lost its end"
            )
        return LogPosition(number, byte)

    def _end_of(self, number: int) -> int:
        """Return the end of the older segment `number`."""
        path = self._path(number + 1)
        try:
            return _read_header(path, number + 1).synced
        except (BadFrame, FileNotFoundError) as error:
            raise LogCorrupt(f"{path} is damaged or missing: {error}; {WAY_OUT}") from None

    def _frames(self, begin: LogPosition, end: LogPosition) -> Iterator[Frame]:
        """Yield the frames from `begin` up to `end`."""
        byte = begin.byte
        for number in range(begin.segment, end.segment + 1):
            stop = end.byte if number == end.segment else self._end_of(number)
            path, start = self._path(number), byte
            try:
                with _open_segment(path) as file:
                    while byte < stop:
                        header, body = _read_frame(file, number, byte)
                        byte = header.end
                        yield *decode(header, body), LogPosition(number, byte)
            except (BadFrame, FileNotFoundError) as error:
                raise LogCorrupt(f"{path} is damaged at byte {byte}: {error}; {WAY_OUT}") from None
            byte = HEADER_BYTES + max(start - stop, 0)

    # Recovery

    def _recover(self, needed: LogPosition | None) -> None:
        make_directories(self._fs, self.directory)
        least = LogPosition(0, 0) if needed is None else needed
        found = self._segments(least.segment)
        if found and not self._has_header(found[-1], least):
            # a crash interrupted its creation: none of its content counts
            self._fs.unlink(self._path(found.pop()))
            self._fs.sync_directory(self.directory)
        if not found:
            self._first = 0 if needed is None else needed.segment + 1
            self._create(self._first, least.byte)
            return
        self._first, self._number = found[0], found[-1]
        path = self._path(self._number)
        self._size = self._synced = self._scan(path, least)
        deque(self.read(needed), maxlen=0)
        if path.stat().st_size > self._size:
            self._fs.truncate(path, self._size)
        self._fd = self._fs.append_to(path)
        self._fs.sync(self._fd)  # the previous process may have ended without a sync
        if self._token > _token_of(path, self._number):
            self._roll()

    def _segments(self, needed: int) -> list[int]:
        """Return the numbers of the segments after the last gap, which must lie before `needed`."""
        names = (_NAME.fullmatch(entry.name) for entry in self.directory.iterdir())
        found, start = sorted(int(name[1]) for name in names if name), 0
        for i, (before, after) in enumerate(pairwise(found), 1):
            if after > before + 1:
                start = i
                if after > needed:
                    missing, there = self._path(before + 1), self._path(after).name
                    raise LogCorrupt(f"{missing} is missing, but {there} is there; {WAY_OUT}")
        return found[start:]

    def _has_header(self, number: int, needed: LogPosition) -> bool:
        """Return whether the last segment has a complete header; else a crash left it partial."""
        path = self._path(number)
        try:
            _read_header(path, number)
        except BadFrame as error:
            if needed.segment == number and needed.byte > HEADER_BYTES:
                return True
            with _open_segment(path) as file:
                if any(frame.synced > 0 for frame in _good_frames(file, number, 1)):
                    raise LogCorrupt(f"{path} is damaged: {error}; {WAY_OUT}") from None
            return False
        return True

    def _scan(self, path: Path, needed: LogPosition) -> int:
        """Return the end of the last segment: before a partial frame left by a crash."""
        size, end = path.stat().st_size, HEADER_BYTES
        needed_byte = needed.byte if needed.segment == self._number else 0
        with _open_segment(path) as file:
            while end < size:
                try:
                    end = _read_frame(file, self._number, end)[0].end
                except BadFrame as error:
                    if end < needed_byte <= size:
                        end = needed_byte
                        continue
                    for good in _good_frames(file, self._number, end + 1):
                        if good.synced > end:
                            raise LogCorrupt(
                                f"{path} is damaged at byte {end} ({error}), before a good frame "
                                f"at {good.byte}; {WAY_OUT}"
                            ) from None
                    break
        return end

    # Writing

    def _append(self, body: Body) -> None:
        assert self._fd is not None
        start = self._size
        data = framed(body, self._number, start, self._synced)
        try:
            self._fs.write(self._fd, data)
        except BaseException:
            self._take_back()
            raise
        self._size = start + len(data)
        self._unsynced.append(body)
        self._unsynced_bytes += len(data)
        late = time.monotonic() - self._synced_at >= self._sync_seconds
        if late or self._unsynced_bytes >= UNSYNCED_BYTES:
            try:
                self._sync()
            except BaseException:
                self._unsynced.pop()  # the raised error means that it is not in the log
                raise

    def _sync(self) -> None:
        if self._unsynced:
            assert self._fd is not None
            try:
                self._fs.sync(self._fd)
            except OSError:
                self._abandon()
                self._reopen()
            except BaseException:
                self._abandon()
                raise
        self._all_synced()

    def _all_synced(self) -> None:
        self._unsynced.clear()
        self._unsynced_bytes = 0
        self._synced = self._size
        self._synced_at = time.monotonic()

    def _take_back(self) -> None:
        """Truncate the remains of a failed write, or abandon the segment as after a failed sync."""
        path = self._path(self._number)
        try:
            self._fs.truncate(path, self._size)
            self._close_file()
            self._fd = self._fs.append_to(path)
        except OSError:
            self._abandon()

    def _abandon(self) -> None:
        """Abandon the segment: frames that may not be on disk go to the next one."""
        self._close_file()
        self._broken = True
        self._size = self._synced
        with suppress(OSError):  # if it cannot be truncated, the next segment's header has its end
            self._fs.truncate(self._path(self._number), self._synced)

    def _reopen(self) -> None:
        """After a failure, write the unsynced frames to a new segment, and sync."""
        if not self._broken:
            if self._fd is None:
                raise ValueError(f"the log in {self.directory} is closed")
            return
        self._create(self._number + 1, self._synced, tuple(self._unsynced))
        self._broken = False
        self._all_synced()

    def _roll(self) -> None:
        self._sync()
        old = self._fd
        self._create(self._number + 1, self._size)
        if old is not None:
            with suppress(OSError):
                self._fs.close(old)

    def _create(self, number: int, previous_end: int, bodies: tuple[Body, ...] = ()) -> None:
        """Create segment `number` with `bodies`, sync, and make it the current one."""
        path = self._path(number)
        self._check_lock(now=True)
        if path.exists():  # left by a failed attempt
            if _token_of(path, number) > self._token:
                raise Fenced(f"{path} was written by a process that has taken over the run")
            self._fs.unlink(path)
        fd = self._fs.create(path)
        size = HEADER_BYTES
        try:
            self._fs.write(fd, framed(Body(b"", 0, self._token), number, 0, previous_end))
            for body in bodies:
                data = framed(body, number, size, synced=0)
                self._fs.write(fd, data)
                size += len(data)
            self._fs.sync(fd)
            self._fs.sync_directory(self.directory)
        except BaseException:
            with suppress(OSError):
                self._fs.close(fd)
            with suppress(OSError):
                self._fs.unlink(path)
            raise
        self._fd, self._number, self._size, self._synced = fd, number, size, size

    def _close_file(self) -> None:
        if self._fd is not None:
            with suppress(OSError):
                self._fs.close(self._fd)
            self._fd = None


@contextmanager
def _report_full_disk(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull("no room for the log; make some, or move the run", directory) from error
        raise


def path_of(directory: Path, number: int) -> Path:
    """Return the file of segment `number`."""
    return directory / f"{number:010d}.log"


def encode(rows: pa.RecordBatch, footer: Mapping[str, Any]) -> Body:
    """Serialize the body of a frame."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    end = json.dumps(footer, separators=(",", ":"), allow_nan=False).encode()
    sink.write(end)
    data = sink.getvalue()
    if data.size > MAX_BODY_BYTES:
        raise ValueError(
            f"a frame of {rows.num_rows} rows has {data.size} bytes, at most {MAX_BODY_BYTES} are "
            "written at once; append fewer rows"
        )
    return Body(memoryview(data), len(end), zlib.crc32(data))


def framed(body: Body, segment: int, byte: int, synced: int) -> bytes:
    """Return the bytes of a frame that begins at `byte` of `segment`."""
    columns_bytes = len(body.data) - body.footer_bytes
    fields = _FIELDS.pack(
        MAGIC, VERSION, body.footer_bytes, columns_bytes, segment, byte, synced, body.crc
    )
    return b"".join((fields, _CRC.pack(zlib.crc32(fields)), body.data))


def parse_header(data: bytes, segment: int, byte: int) -> Header:
    """Parse the header in `data`, which must have been written for this place."""
    if len(data) < HEADER_BYTES:
        raise BadFrame("the header is truncated")
    if zlib.crc32(data[: _FIELDS.size]) != _CRC.unpack_from(data, _FIELDS.size)[0]:
        raise BadFrame("the header is damaged")
    magic, version, footer, columns, segment_, byte_, synced, crc = _FIELDS.unpack_from(data)
    if magic != MAGIC or (segment_, byte_) != (segment, byte):
        raise BadFrame("the header belongs elsewhere")
    if version != VERSION:
        raise LogVersion(f"the log has frames of version {version}, this tgflow reads {VERSION}")
    if footer + columns > MAX_BODY_BYTES:
        raise BadFrame(f"the frame has an invalid size of {footer + columns} bytes")
    return Header(byte, synced, columns, footer, crc)


def decode(header: Header, body: bytes) -> tuple[pa.RecordBatch, dict[str, Any]]:
    """Parse the rows and the footer of a verified body."""
    try:
        columns = pa.py_buffer(body).slice(0, header.columns_bytes)
        with pa.ipc.open_stream(columns) as reader:
            rows = reader.read_next_batch()
        rows.validate()
        footer = json.loads(body[header.columns_bytes :])
    except (pa.ArrowException, OSError, StopIteration, ValueError, RecursionError) as error:
        raise BadFrame(f"the body cannot be read: {error}") from None
    if not isinstance(footer, dict):
        raise BadFrame("the footer is not an object")
    return rows, footer


def read_written(directory: Path, start: LogPosition) -> Iterator[Frame]:
    """Yield the complete frames after `start` of a log that another process may append to.

    Ends at the first one that is not complete, or was removed.
    """
    number, byte = start.segment, start.byte
    while True:
        try:
            stop = _read_header(path_of(directory, number + 1), number + 1).synced
        except (BadFrame, FileNotFoundError):  # this is the last segment
            stop = None
        if stop is None or byte < stop:
            try:
                with _open_segment(path_of(directory, number)) as file:
                    while stop is None or byte < stop:
                        header, body = _read_frame(file, number, byte)
                        byte = header.end
                        yield *decode(header, body), LogPosition(number, byte)
            except (BadFrame, FileNotFoundError):
                return
        # frames moved to the next segment keep their order and sizes
        number, byte = number + 1, HEADER_BYTES + byte - stop


def rewrite(
    fs: RealFs,
    directory: Path,
    target: Path,
    change: Callable[[pa.RecordBatch, dict[str, Any]], tuple[pa.RecordBatch, dict[str, Any]]],
) -> Callable[[LogPosition], LogPosition]:
    """Write a copy of a log whose frames are changed, synced; return the map of its positions.

    No process may append to it. `change` returns rows and footer of a frame for those that it has.
    """
    names = filter(None, (_NAME.fullmatch(path.name) for path in directory.iterdir()))
    numbers, ends = sorted(int(name[1]) for name in names), dict[int, int]()
    moved: dict[tuple[int, int], int] = {}
    for number in reversed(numbers):
        try:
            ends[number - 1] = _read_header(path_of(directory, number), number).synced
        except BadFrame as error:
            if number < numbers[-1]:
                raise LogCorrupt(f"{path_of(directory, number)}: {error}; {WAY_OUT}") from None
            numbers.pop()  # a crash interrupted its creation
    for number in numbers:
        path = path_of(directory, number)
        before = moved.get((number - 1, ends[number - 1]), ends[number - 1])
        token = Body(b"", 0, _token_of(path, number))
        fd = fs.create(path_of(target, number))
        fs.write(fd, framed(token, number, 0, before))
        byte = size = HEADER_BYTES
        moved[number, byte] = size
        with _open_segment(path) as file:
            while byte < ends.get(number, os.fstat(file.fileno()).st_size):
                try:
                    header, body = _read_frame(file, number, byte)
                except BadFrame as error:
                    good = _good_frames(file, number, byte + 1)
                    if number in ends or any(each.synced > byte for each in good):
                        text = f"{path} is damaged at byte {byte}: {error}; {WAY_OUT}"
                        raise LogCorrupt(text) from None
                    break  # a partial frame of a crash
                made = encode(*change(*decode(header, body)))
                data = framed(made, number, size, moved.get((number, header.synced), 0))
                fs.write(fd, data)
                byte, size = header.end, size + len(data)
                moved[number, byte] = size
        fs.sync(fd)
        fs.close(fd)
    fs.sync_directory(target)

    def position(old: LogPosition) -> LogPosition:
        number, byte = old.segment, old.byte
        while number in ends and byte > ends[number] and number + 1 in numbers:
            number, byte = number + 1, HEADER_BYTES + byte - ends[number]
        if number in numbers and (number, byte) not in moved:
            raise LogCorrupt(f"{directory} has no frame that ends at {old}; {WAY_OUT}")
        return LogPosition(number, moved.get((number, byte), byte))

    return position


def _open_segment(path: Path) -> BinaryIO:
    """Open a regular file for reading, never through a link."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW))


def _read_header(path: Path, number: int) -> Header:
    """Return the header of the segment in `path`."""
    with _open_segment(path) as file:
        return parse_header(file.read(HEADER_BYTES), number, 0)


def _token_of(path: Path, number: int) -> int:
    """Return the fencing token of the segment in `path`; 0 if its header is damaged."""
    try:
        return _read_header(path, number).crc
    except BadFrame:
        return 0


def _read_frame(file: BinaryIO, number: int, byte: int) -> tuple[Header, bytes]:
    """Return the header and the verified body of the frame at `byte`."""
    file.seek(byte)
    header = parse_header(file.read(HEADER_BYTES), number, byte)
    if header.end > os.fstat(file.fileno()).st_size:
        raise BadFrame("the body is truncated")
    body = file.read(header.columns_bytes + header.footer_bytes)
    if len(body) != header.end - byte - HEADER_BYTES or zlib.crc32(body) != header.crc:
        raise BadFrame("the body is truncated or damaged")
    return header, body


def _good_frames(file: BinaryIO, number: int, start: int) -> Iterator[Header]:
    """Yield the valid headers of frames after `start`, at any byte."""
    file.seek(start)
    data = file.read()
    at = data.find(MAGIC)
    while at >= 0:
        with suppress(BadFrame):
            yield _read_frame(file, number, start + at)[0]
        at = data.find(MAGIC, at + 1)
