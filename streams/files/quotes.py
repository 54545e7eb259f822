"""Quotes in delimited text: around whole values, as RFC 4180 has them."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from tgflow.streams.files.blocks import Text

_QUOTE, _LINE_END, _RETURN = (ord(char) for char in '"\n\r')


def enclose_values(lines: Text, delimiter: str) -> bool:
    r"""Return whether each value that begins with a quote ends by one, with others in it doubled.

    A quote that opens within a value is a character like any other. A quoted value that holds a
    line end may pass: whoever counts lines finds it.

    Args:
        lines: Whole lines that end by `\n` or `\r\n`.
        delimiter: What stands between two values, one byte.
    """
    if _alternate(lines, ord(delimiter)):
        return True
    whole = _whole_line(delimiter)
    return all(whole.fullmatch(line) for line in bytes(lines).splitlines() if b'"' in line)


def _alternate(lines: Text, delimiter: int) -> bool:
    """Return whether quotes open at the start of a value and close at its end, in turn.

    Two within a quoted value count as one that closes and one that opens again. This is exact but
    for quotes that open within a value, of which it says no.
    """
    data = np.frombuffer(lines, dtype=np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    before = data[np.maximum(opening - 1, 0)]
    after = data[np.minimum(closing + 1, len(data) - 1)]
    opens = (opening == 0) | np.isin(before, (delimiter, _LINE_END, _QUOTE))
    closes = np.isin(after, (delimiter, _LINE_END, _RETURN, _QUOTE))  # itself at the very end
    return bool(opens.all() and closes.all())


@lru_cache
def _whole_line(delimiter: str) -> re.Pattern[bytes]:
    """Return what matches a line whose quotes enclose values."""
    between = re.escape(delimiter.encode())
    value = rb'(?:"[^"]*+(?:""[^"]*+)*+"|(?!")[^' + between + rb"]*+)"
    return re.compile(value + rb"(?:" + between + value + rb")*+")
