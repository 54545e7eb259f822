"""Stream exceptions and error codes."""

from __future__ import annotations

from tgflow.base.text import shortened

CODES = {
    "too_large": "longer than max_record_bytes",
    "encoding": "bytes that are not UTF-8, or invalid for their type",
    "syntax": "not a row of the format: broken JSON, an open quote, damaged Arrow data",
    "schema": "wrong number of values, unknown or repeated keys, wrong schema",
    "null": "a missing value",
    "type": "a value of the wrong type",
    "negative_id": "an integer id below 0",
    "huge_id": "an id beyond int64",
    "time_type": "a time that is not a number",
    "time_precision": "a time between two ticks",
    "time_range": "a time beyond int64 ticks, or one of their limits",
    "time_jump": "a time more than max_time_jump ahead of all before it, or of the clock",
    "width": "a different number of features than in the first row",
    "nan": "a feature that is not a number",
    "inf": "a feature that is infinite in float32",
    "range": "a value outside of its declared range",
    "late": "an event later than allowed_lateness",
    "ambiguous": "a label of several events alike",
    "unseen": "a label of no event so far, while as many as allowed wait for theirs",
}
"""Error codes of rejected rows and events, with their meaning."""
MAX_MESSAGE = 200
"""Maximum characters of stream data quoted in a message."""


class StreamError(ValueError):
    """Base class of stream errors. The message names the file and the line or row.

    Args:
        where: The place, as `events.csv, line 812`, or only the file.
        code: Error code: one of `CODES`, or `time_order` in a strict reader.
        text: The fault, the value received, and the fix.
    """

    def __init__(self, where: str, code: str, text: str) -> None:
        super().__init__(f"{where}: {text}")
        self.where = where
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.where, self.code, self.text)


class SourceExpired(StreamError):
    """Raised when the next data is gone: deleted by retention, or a removed file."""


class SourceTruncated(StreamError):
    """Raised when the source ends before the saved position: a recreated topic, a cut file."""


class SourceMismatch(StreamError):
    """Raised when data before the saved position differs: another topic, a modified file."""


class SourceCorrupt(StreamError):
    """Raised when data is damaged, and stays so on every retry."""


class SourceUnavailable(StreamError):
    """Raised when the source was unreachable for longer than the timeout; try again later."""


class SourceRefused(StreamError):
    """Raised when no retry helps: a refused login, a missing permission, library or topic."""


class NoTopicError(StreamError):
    """Raised when the broker has no such topic, and the client may not create it."""


class TooManyBadRecords(StreamError):
    """Raised when the share of bad rows is so high that the schema must be wrong.

    Args:
        where: As of `StreamError`, and likewise `code` and `text`.
        row: The bad row that exceeded the limit; None if all rows were counted.
        example: The place of the example in `text`.
    """

    def __init__(
        self, where: str, code: str, text: str, row: object = None, example: str = ""
    ) -> None:
        super().__init__(where, code, text)
        self.row = row
        self.example = example


class LateEvent(StreamError):
    """Raised for an event later than `allowed_lateness` under the policy "error"."""


def shown(value: object) -> str:
    """Return `value` formatted for a message: quoted, escaped, and at most 60 characters."""
    return shortened(repr(value), 60)
