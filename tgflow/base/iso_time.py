"""Parses times in ISO 8601, SQL or a given format, with or without a zone; the default is UTC.

Imports only the standard library, to keep the command line's help fast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache

from tgflow.base.units import seconds_per_tick

EXAMPLE = "2024-05-01 12:00:00"
DAY, CLOCK = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[0-9]{2}:[0-9]{2}"
_ISO = re.compile(
    rf"\s*({DAY})(?:[Tt ]({CLOCK})(?::([0-9]{{2}})(?:[.,]([0-9]{{1,18}}))?)?"
    r" ?(?:([Zz]|UTC)|([+-][0-9]{2}(?::?[0-5][0-9])?))?)?\s*"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso_seconds(text: str) -> Fraction | None:
    """Return the seconds since 1970 of a time such as `2024-05-01 12:00:00.123+02:00`, exactly.

    A date means its midnight; without a zone a time is UTC. None if the text is not a time.
    """
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    day, clock, second, decimals, _, zone = found.groups()
    clock = clock or "00:00"
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}:{second or '00'}{zone or 'Z'}")
    except ValueError:
        return None
    if clock >= "24":  # which later versions of Python read as the next day
        return None
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return seconds + Fraction(int(decimals or 0), 10 ** len(decimals or ""))


FIRST_DATE, LAST_DATE = 631_152_000, 221_845_392_000
"""Unix seconds of 1990 and of 9000; times outside are hardly dates."""


def iso_text(ticks: float, unit: str) -> str | None:
    """Return a time as 2024-05-01T12:00:00Z; None where ticks are hardly Unix time."""
    seconds = 0 if unit == "tick" else ticks * seconds_per_tick(unit)
    if not FIRST_DATE <= seconds <= LAST_DATE:
        return None
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=1 << 16)
def time_seconds(text: str, format: str | None = None) -> Fraction | None:
    """Return the seconds since 1970 of a time, exactly; None if the text is not one.

    Without a `format` of `datetime.strptime` it is read as by `iso_seconds`.
    """
    if format is None:
        return iso_seconds(text)
    try:
        found = datetime.strptime(text.strip(), format)
    except ValueError:
        return None
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return Fraction((found - _EPOCH) // timedelta(microseconds=1), 10**6)


def check_format(format: str) -> None:
    """Raise ValueError unless a format of `datetime.strptime` can be read."""
    try:
        datetime.strptime(_EPOCH.strftime(format), format)
        is_valid = "%" in format
    except (ValueError, re.error):
        is_valid = False
    if not is_valid:
        raise ValueError(f"time_format must have directives such as %m/%d/%Y, got {format!r}")


FORMATS = (
    "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%m/%d/%y", "%d/%m/%y",
    "%d %b %Y", "%b %d %Y", "%b %d, %Y", "%d-%b-%Y",
)  # fmt: skip
"""Common formats of dates; a clock may follow each."""
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", "T%H:%M:%S")


def formats_of(texts: Sequence[str]) -> list[str]:
    """Return the common formats that all of some texts have."""
    formats = (day + clock for day in FORMATS for clock in _CLOCKS)
    return [f for f in formats if all(time_seconds(text, f) is not None for text in texts)]


def has_zone(text: str) -> bool:
    """Return whether a time includes its zone."""
    found = _ISO.fullmatch(text)
    return found is not None and any(found.group(5, 6))
