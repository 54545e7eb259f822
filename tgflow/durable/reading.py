"""Read the frames of a log back, over all of its segments."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from tgflow.durable import frames, segments
from tgflow.durable.errors import WAY_OUT, LogCorrupt
from tgflow.durable.frames import BadFrame, Header
from tgflow.durable.segments import LogPosition

Frame: TypeAlias = tuple[pa.RecordBatch, dict[str, Any], LogPosition]
"""Rows, footer, and the place after the frame."""


def frames_between(directory: Path, start: LogPosition, end: LogPosition) -> Iterator[Frame]:
    """Yield the frames from `start` up to `end`.

    Raises:
        LogCorrupt: If one is damaged.
    """
    number, byte = start.segment, start.byte
    while number <= end.segment:
        stop = end.byte if number == end.segment else segment_end(directory, number)
        yield from _segment_frames(directory, number, byte, stop)
        # frames that were moved to the next segment kept their order and their sizes
        byte = segments.HEADER_BYTES + max(byte - stop, 0)
        number += 1


def forward(directory: Path, place: LogPosition, last: int) -> LogPosition:
    """Return where the frames after `place` begin: in a later segment if its own ends there.

    Args:
        directory: Where the segments are.
        place: The place after a frame.
        last: The newest segment.

    Raises:
        LogCorrupt: If the header that says where a segment ends is damaged or missing.
    """
    number, byte = place.segment, place.byte
    while number < last and byte >= (stop := segment_end(directory, number)):
        # frames that were moved to the next segment kept their order and their sizes
        number, byte = number + 1, segments.HEADER_BYTES + byte - stop
    return LogPosition(number, byte)


def segment_end(directory: Path, number: int) -> int:
    """Return up to which byte the older segment `number` counts.

    Raises:
        LogCorrupt: If the next segment, whose header says so, is damaged or missing.
    """
    path = segments.path_of(directory, number + 1)
    try:
        return segments.read_header(path, number + 1)
    except (BadFrame, FileNotFoundError) as error:
        raise LogCorrupt(f"{path} is damaged or missing: {error}; {WAY_OUT}") from None


def _segment_frames(directory: Path, number: int, byte: int, stop: int) -> Iterator[Frame]:
    path = segments.path_of(directory, number)
    if byte >= stop:
        return
    try:
        with segments.open_segment(path) as file:
            while byte < stop:
                header, body = segments.read_frame(file, number, byte)
                byte = header.end
                yield *frames.decode(header, body), LogPosition(number, byte)
    except (BadFrame, FileNotFoundError) as error:
        raise LogCorrupt(f"{path} is damaged at byte {byte}: {error}; {WAY_OUT}") from None


KEPT_BYTES = 64 << 20
"""Rows that are kept; those after them are read a second time, since memory is bounded."""


class KeptFrames:
    """The frames from a place on: all of them are checked, and the first of them kept.

    Frames of older segments are read when this is made; those of the last one come from `see`,
    while the log looks for its end.

    Args:
        directory: Where the segments are.
        start: The place after a frame; None for the beginning of segment `first`.
        first: The oldest segment.
        last: The newest segment.

    Raises:
        LogCorrupt: If a frame of an older segment is damaged.
    """

    def __init__(self, directory: Path, start: LogPosition | None, first: int, last: int) -> None:
        self.start = start
        self._directory, self._last = directory, last
        self._frames: deque[Frame] = deque()
        self._num_bytes = 0
        begin = LogPosition(first, segments.HEADER_BYTES) if start is None else start
        self._end = forward(directory, begin, last)
        self._seen_from = self._end.byte if self._end.segment == last else segments.HEADER_BYTES
        if self._end.segment < last:
            older = LogPosition(last - 1, segment_end(directory, last - 1))
            for frame in frames_between(directory, self._end, older):
                self._add(frame)

    def see(self, header: Header, body: bytes) -> None:
        """Take the next frame of the last segment.

        Raises:
            LogCorrupt: If its body cannot be read.
        """
        if header.byte < self._seen_from:
            return
        try:
            rows, footer = frames.decode(header, body)
        except BadFrame as error:
            path = segments.path_of(self._directory, self._last)
            text = f"{path} is damaged at byte {header.byte}: {error}; {WAY_OUT}"
            raise LogCorrupt(text) from None
        self._add((rows, footer, LogPosition(self._last, header.end)))

    def take(self, end: LogPosition) -> Iterator[Frame]:
        """Yield the frames up to `end`; each is let go of once it was given.

        Raises:
            LogCorrupt: If one that was not kept has been damaged since.
        """
        begin = self._end
        while self._frames:
            yield self._frames.popleft()
        yield from frames_between(self._directory, begin, end)

    def _add(self, frame: Frame) -> None:
        if self._num_bytes < KEPT_BYTES:
            self._frames.append(frame)
            self._end = frame[2]
        self._num_bytes += frame[0].nbytes + 1
