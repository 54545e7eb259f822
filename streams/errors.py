"""What a source says when its data cannot be read."""

from __future__ import annotations


class StreamError(ValueError):
    """Data that is not a stream of events. The message names the file and the line or row.

    Args:
        where: The place, as `events.csv, line 812`, or only the file.
        code: What kind of fault it is, one lowercase word: `schema`, `type`, `time_order`, ...
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


class RowError(Exception):
    """One row that cannot become an event; whoever knows the file turns it into a `StreamError`.

    Args:
        row: Its index in the batch at hand.
        code: As in `StreamError`.
        text: As in `StreamError`.
    """

    def __init__(self, row: int, code: str, text: str) -> None:
        super().__init__(text)
        self.row = row
        self.code = code
        self.text = text


def shown(value: object) -> str:
    """Return `value` as a message shows it: quoted, escaped, and at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
