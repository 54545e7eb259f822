"""What a source says when its data cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

from tgflow.text import shortened

CODES = {
    "too_large": "longer than max_record_bytes",
    "encoding": "bytes that are not UTF-8, or not what their type says",
    "syntax": "no row of the format: broken JSON, an open quote, damaged Arrow data",
    "schema": "another number of values, unknown or repeated keys, another schema",
    "null": "a value is missing",
    "type": "a value is of another type",
    "negative_id": "an integer id below 0",
    "huge_id": "an id beyond int64 or max_node_id",
    "time_type": "a time that is no number",
    "time_precision": "a time between two ticks",
    "time_range": "a time beyond int64 ticks, or outside of time_min and time_max",
    "time_jump": "a time more than max_time_jump ahead of all before it",
    "width": "another number of features than in the first row",
    "nan": "a feature that is not a number",
    "inf": "a feature that is infinite in float32",
    "range": "a value outside of its declared range",
    "late": "an event that came after its time was passed on",
}
"""Why a row is no event, or an event is not accepted."""
MAX_MESSAGE = 200
"""Characters of a message that quotes what came with a stream."""


class StreamError(ValueError):
    """Data that is not a stream of events. The message names the file and the line or row.

    Args:
        where: The place, as `events.csv, line 812`, or only the file.
        code: What kind of fault it is, one of `CODES`, or `time_order` in a strict reader.
        text: What was wrong, what arrived, and the way out.
    """

    def __init__(self, where: str, code: str, text: str) -> None:
        super().__init__(f"{where}: {text}")
        self.where = where
        self.code = code
        self.text = text


class SourceExpired(StreamError):
    """What comes next is no longer kept: retention, or a file that is gone."""


class SourceTruncated(StreamError):
    """The source ends before the position that was reached: a recreated topic, a cut file."""


class SourceMismatch(StreamError):
    """What stood before the position is not what was read then: another topic, a changed file."""


class SourceCorrupt(StreamError):
    """The same bytes are damaged however often they are read."""


class SourceUnavailable(StreamError):
    """The source could not be reached for too long; try again later."""


class TooManyBadRecords(StreamError):
    """So much of the data is bad that the schema must be wrong."""


class LateEvent(StreamError):
    """An event came too late, and late events are an error."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """What is wrong with one row."""

    row: int
    code: str
    text: str


def shown(value: object) -> str:
    """Return `value` as a message shows it: quoted, escaped, and at most 60 characters."""
    return shortened(repr(value), 60)
