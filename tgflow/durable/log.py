"""The durable log: rows as they arrived, in frames that are whole or absent, over any crash."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from tgflow.durable import frames, segments
from tgflow.durable.errors import FULL, WAY_OUT, DiskFull, LogCorrupt
from tgflow.durable.frames import BadFrame, Body
from tgflow.durable.fs import RealFs, make_directories
from tgflow.durable.segments import LogPosition

UNSYNCED_BYTES = 64 << 20
"""Frames not yet on the disk are kept in memory up to this size; then they are synced."""


class DurableLog:
    """A log in a directory, appended to by one process (see `RunLock`).

    Opening recovers: a frame that a crash left half-written at the end is cut off. `append`, `sync`
    and `drop_before` may be called from several threads; so may `read`, which sees whole frames.

    Args:
        directory: Where its segments are; made if it is not there.
        fs: File operations.
        segment_bytes: A segment this large is followed by a new one.
        sync_ms: Longest time between two waits for the disk while frames are appended; 0 waits at
            every frame.
        needed: The place from which on frames will be read, that of a checkpoint; None for all.
            What is damaged or missing before it is listed in `problems`, not refused. A log of
            which nothing is there begins right after it.
        check: Check all frames from `needed` on while opening, not those of the last segment alone.

    Raises:
        LogCorrupt: If frames that were on the disk are damaged or missing.
        LogVersion: If another tgflow wrote it.
        OSError: If the directory cannot be made, read or written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        fs: RealFs | None = None,
        segment_bytes: int = 256 << 20,
        sync_ms: float = 100,
        needed: LogPosition | None = None,
        check: bool = False,
    ) -> None:
        self.directory = Path(directory)
        self._fs: RealFs = RealFs() if fs is None else fs
        self._segment_bytes = segment_bytes
        self._sync_seconds = sync_ms / 1e3
        self._lock = threading.RLock()
        self._fd: int | None = None
        self._unsynced: deque[Body] = deque()
        self._unsynced_bytes = 0
        self._synced_at = time.monotonic()
        self._broken = False
        self.num_syncs = 0
        """Waits for the disk so far."""
        self.cut_bytes = 0
        """What recovery cut off: bytes of frames that a crash left half-written."""
        self.problems: list[str] = []
        """What recovery found damaged or missing where nothing will be read."""
        self._recover(needed, check)

    @property
    def end(self) -> LogPosition:
        """The place after the last frame."""
        with self._lock:
            return LogPosition(self._number, self._size)

    @property
    def is_whole(self) -> bool:
        """Whether it holds its frames from the first one ever."""
        with self._lock:
            return self._first == 0

    @property
    def num_bytes(self) -> int:
        """Size of all segments."""
        with self._lock:
            older = range(self._first, self._number)
            paths = (segments.path_of(self.directory, number) for number in older)
            return sum(path.stat().st_size for path in paths) + self._size

    def append(self, rows: pa.RecordBatch, footer: Mapping[str, Any]) -> LogPosition:
        """Add a frame and return the place after it.

        It can be read at once, and survives the process; it survives the machine from the next
        sync on. If this raises, the frame is not in the log, and the next `append` continues after
        the one before it.

        Args:
            rows: Rows, at least none, with any columns.
            footer: What JSON can hold.

        Raises:
            DiskFull: If there is no room.
            OSError: If the disk refuses.
            ValueError: If the frame is too large, or the footer is not JSON.
        """
        body = frames.encode(rows, footer)
        with self._lock, _report_full_disk(self.directory):
            self._reopen()
            if self._size >= self._segment_bytes:
                self._roll()
            self._append(body)
            return self.end

    def sync(self) -> None:
        """Return once all frames are on the disk.

        Raises:
            DiskFull: If there is no room; frames not yet on the disk are kept for the next try.
            OSError: If the disk refuses; as above.
        """
        with self._lock, _report_full_disk(self.directory):
            self._reopen()
            self._sync()

    def read(
        self, start: LogPosition | None = None
    ) -> Iterator[tuple[pa.RecordBatch, dict[str, Any], LogPosition]]:
        """Return rows, footer and the place after it of each frame from `start` on.

        Args:
            start: The place after a frame, as `append` gave it; None for the oldest frame there is.

        Raises:
            LogCorrupt: If the log begins after `start` or ends before it; while the frames are
                gone through, if one is damaged.
        """
        with self._lock:
            oldest = LogPosition(self._first, segments.HEADER_BYTES)
            begin = oldest if start is None else self.locate(start)
            return segments.frames_between(self.directory, begin, self.end)

    def locate(self, place: LogPosition) -> LogPosition:
        """Return where the frames after `place` begin.

        Raises:
            LogCorrupt: If the log begins after it or ends before it.
        """
        with self._lock:
            first, last, end, found = self._first, self._number, self.end, place
            if first - 1 <= place.segment < last:
                found = segments.forward(self.directory, place, last)
            if found.segment < first or found > end:
                raise LogCorrupt(
                    f"{self.directory} holds frames from segment {first} to byte {end.byte} of "
                    f"segment {end.segment}, but byte {place.byte} of segment {place.segment} is "
                    "asked for: it is not the log that goes with this checkpoint, or it lost its "
                    "end"
                )
            return found

    def drop_before(self, position: LogPosition) -> None:
        """Remove the segments that hold only frames before `position`, once that is on the disk.

        Raises:
            OSError: If the disk refuses.
        """
        with self._lock:
            if position > LogPosition(self._number, self._synced):
                self.sync()
            while self._first < min(position.segment, self._number):
                self._fs.unlink(segments.path_of(self.directory, self._first))
                self._first += 1
                self._fs.sync_directory(self.directory)  # so that no gap can be left

    def close(self) -> None:
        """Sync and close; a second time does nothing.

        Raises:
            OSError: If the disk refuses; frames since the last sync may then be lost.
        """
        with self._lock:
            if self._fd is None and not self._broken:
                return
            try:
                self.sync()
            finally:
                self._close_file()
                self._broken = False

    def __enter__(self) -> DurableLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Recovery

    def _recover(self, asked: LogPosition | None, check: bool) -> None:
        needed = LogPosition(0, 0) if asked is None else asked
        make_directories(self._fs, self.directory)
        found = segments.numbers(self.directory, needed.segment, self.problems)
        if found and not self._has_header(found[-1], needed):
            # it was being made when the machine went down: nothing in it counts
            self._fs.unlink(segments.path_of(self.directory, found.pop()))
            self._fs.sync_directory(self.directory)
        if not found:
            self._first = self._number = 0 if asked is None else asked.segment + 1
            self._size = self._synced = 0
            self._create(self._number, needed.byte)
            return
        self._check_older(found, needed.segment)
        self._first, self._number = found[0], found[-1]
        path = segments.path_of(self.directory, self._number)
        start = needed.byte if needed.segment == self._number else 0
        scan = segments.scan(path, self._number, start)
        self.problems += scan.problems
        self.cut_bytes = scan.cut
        if scan.cut:
            self._fs.truncate(path, scan.end)
        self._fd = self._fs.append_to(path)
        self._fs.sync(self._fd)  # the process before may have died without
        self._size = self._synced = scan.end
        if check and (asked is None or asked.segment >= self._first - 1):
            deque(self.read(asked), maxlen=0)

    def _has_header(self, number: int, needed: LogPosition) -> bool:
        """Return whether the last segment has a whole header; else a crash left it half-made."""
        path = segments.path_of(self.directory, number)
        try:
            segments.read_header(path, number)
        except BadFrame as error:
            wrong = f"{path} is damaged: {error}"
            if needed.segment == number and needed.byte > segments.HEADER_BYTES:
                self.problems.append(wrong)
                return True
            if segments.was_synced(path, number):
                raise LogCorrupt(f"{wrong}; {WAY_OUT}") from None
            return False
        return True

    def _check_older(self, found: list[int], needed: int) -> None:
        """Raise LogCorrupt if an older segment that is needed is shorter than the next one says."""
        for number in range(max(found[0], needed), found[-1]):
            path, stop = (
                segments.path_of(self.directory, number),
                segments.segment_end(self.directory, number),
            )
            if path.stat().st_size < stop:
                found_bytes = path.stat().st_size
                raise LogCorrupt(f"{path} has {found_bytes} bytes, but had {stop}; {WAY_OUT}")

    # Writing

    def _append(self, body: Body) -> None:
        assert self._fd is not None
        start = self._size
        data = frames.place(body, self._number, start, self._synced)
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
                self._unsynced.pop()  # the caller will hear that it is not in the log
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
        self.num_syncs += 1

    def _take_back(self) -> None:
        """Cut off what a failed write left, or leave the segment as a failed sync does."""
        path = segments.path_of(self.directory, self._number)
        try:
            self._fs.truncate(path, self._size)
            self._close_file()
            self._fd = self._fs.append_to(path)
        except OSError:
            self._abandon()

    def _abandon(self) -> None:
        """Give the segment up: what is not surely on the disk goes to the next one."""
        self._close_file()
        self._broken = True
        self._size = self._synced
        with suppress(OSError):  # if it cannot be cut, the next segment's header says where it ends
            path = segments.path_of(self.directory, self._number)
            self._fs.truncate(path, self._synced)

    def _reopen(self) -> None:
        """After a failure, write what was not on the disk to a new segment, and wait for it."""
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
        """Make segment `number` with `bodies`, wait for the disk, and make it the one in use."""
        path = segments.path_of(self.directory, number)
        if path.exists():  # left by a try that failed
            self._fs.unlink(path)
        fd = self._fs.create(path)
        size = segments.HEADER_BYTES
        try:
            self._fs.write(fd, segments.header(number, previous_end))
            for body in bodies:
                data = frames.place(body, number, size, synced=0)
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
