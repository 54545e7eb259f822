"""Frames of a log, read back over all of its segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from tgflow.durable import frames, segments
from tgflow.durable.errors import WAY_OUT, LogCorrupt
from tgflow.durable.frames import BadFrame
from tgflow.durable.position import LogPosition

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
