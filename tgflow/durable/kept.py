"""The frames that a log will be asked for, checked while it is opened and kept for the asking."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tgflow.durable import frames, reading, segments
from tgflow.durable.errors import WAY_OUT, LogCorrupt
from tgflow.durable.frames import BadFrame, Header
from tgflow.durable.position import LogPosition
from tgflow.durable.reading import Frame

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
        self._end = reading.forward(directory, begin, last)
        self._seen_from = self._end.byte if self._end.segment == last else segments.HEADER_BYTES
        if self._end.segment < last:
            older = LogPosition(last - 1, reading.segment_end(directory, last - 1))
            for frame in reading.frames_between(directory, self._end, older):
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
        yield from reading.frames_between(self._directory, begin, end)

    def _add(self, frame: Frame) -> None:
        if self._num_bytes < KEPT_BYTES:
            self._frames.append(frame)
            self._end = frame[2]
        self._num_bytes += frame[0].nbytes + 1
