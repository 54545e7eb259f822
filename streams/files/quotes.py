"""Quoted values of delimited text, and the ends of its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tgflow.streams.rows.row_batch import Int64s

Text: TypeAlias = bytes | bytearray
QUOTE = ord('"')


@dataclass(frozen=True, slots=True)
class QuotedValues:
    """Offsets of quoted values; a doubled quote may divide a value in two."""

    starts: Int64s
    ends: Int64s
    is_sound: bool
    """Whether a separator, a line end or the end of the text follows each value."""
    is_open: bool
    """Whether the last value is not closed; it ends with the text."""

    def hold(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which offsets are within a quoted value."""
        number = np.searchsorted(self.starts, offsets, side="right")
        return (number > 0) & (offsets < np.append(0, self.ends)[number])


class Quotes:
    """Finds quoted values as Python's `csv` does.

    A quote at the start of a value opens it, and the next one that is not doubled closes it;
    other quotes are ordinary characters. Texts must begin with a row. Comment lines have no values.

    Args:
        separators: Characters that separate values.
        comments: Prefixes of comment lines.
    """

    def __init__(self, separators: bytes, comments: Sequence[bytes] = ()) -> None:
        self.comments = (*comments,)
        self._borders = b'\r\n"' + separators
        value = rb'"(?<![^%b\r\n]")((?:[^"]++|"")*+)("?)' % re.escape(separators)
        comment = b"|".join(map(re.escape, comments))
        none = np.empty(0, np.int64)
        self._latest: tuple[Text | None, QuotedValues] = None, QuotedValues(none, none, True, False)
        self._value = re.compile(value)
        self._value_or_comment = re.compile(rb"(?m)^(?:%b)[^\n]*+|%b" % (comment, value))

    def find(self, text: Text) -> QuotedValues:
        """Return the quoted values of a text, or of what was not cut off since `row_ends`."""
        known, found = self._latest
        if known is text:
            num = int(np.searchsorted(found.starts, len(text)))
            is_open = found.is_open and num == len(found.starts)
            return QuotedValues(found.starts[:num], found.ends[:num], True, is_open)
        data = np.frombuffer(text, dtype=np.uint8)
        quotes = np.flatnonzero(data == QUOTE)
        if self._has_comments(text):
            return self.find_each(text)
        opening, closing = quotes[::2], quotes[1::2]  # a doubled quote closes and opens
        ends = closing + 1
        opens = self._are_borders(data[opening - 1])
        opens[:1] |= opening[:1] == 0
        if not (opens.all() and self._are_borders(data.take(ends, mode="clip")).all()):
            return self.find_each(text)
        is_open = len(opening) > len(closing)
        ends = np.append(ends, len(data)) if is_open else ends
        return QuotedValues(opening, ends, True, is_open)

    def find_each(self, text: Text, start: int = 0) -> QuotedValues:
        """Return the quoted values from `start` on, without exceptions; slower than `find`."""
        pattern = self._value_or_comment if self._has_comments(text) else self._value
        found = [each for each in pattern.finditer(text, start) if each[1] is not None]
        starts, ends = np.array([each.span() for each in found], np.int64).reshape(-1, 2).T
        is_open = bool(found) and not found[-1][2]
        after = ends[ends < len(text)]
        is_sound = bool(self._are_borders(np.frombuffer(text, dtype=np.uint8)[after]).all())
        return QuotedValues(starts, ends, is_sound, is_open)

    def _are_borders(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = data == self._borders[0]
        for border in self._borders[1:]:  # 5x faster than a table
            found |= data == border
        return found

    def _has_comments(self, text: Text) -> bool:
        return any(text.startswith(each) or b"\n" + each in text for each in self.comments)

    def row_ends(self, text: Text, *, is_whole: bool = True) -> Int64s:
        """Return the offset after each row, including a last one without end if `is_whole`."""
        data = np.frombuffer(text, dtype=np.uint8)
        is_end = data == ord("\n")
        if b'"' in text:
            values = self.find(text)
            self._latest = (text if values.is_sound else None, values)
            ends = values.ends[data.take(values.ends, mode="clip") == ord("\n")]
            if values.is_open or len(ends) < np.count_nonzero(is_end):  # not all end in a quote
                ends = np.flatnonzero(is_end)
                ends = ends[~values.hold(ends)]
        else:
            ends = np.flatnonzero(is_end)
        ends += 1
        is_short = is_whole and len(text) > (ends[-1] if len(ends) else 0)
        return np.append(ends, len(text)) if is_short else ends

    def endless(self, text: Text, longest: int, is_last: bool, start: int = 0) -> int | None:
        """Return the offset of the first quote that is not closed within `longest` bytes.

        If the text `is_last` in its file, also of one that opens before its last line.
        """
        found = self.find_each(text, start)
        is_endless = found.ends - found.starts > longest
        if is_last and found.is_open:
            is_endless[-1] |= b"\n" in text[found.starts[-1] : -1]
        return int(found.starts[is_endless][0]) if is_endless.any() else None
