"""Parses times in ISO 8601 or SQL format, with or without a zone; the default is UTC.

Imports only the standard library, to keep the command line's help fast.
"""

from __future__ import annotations

import re
from datetime import date
from fractions import Fraction

EXAMPLE = "2024-05-01 12:00:00"
DAY, CLOCK = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[0-9]{2}:[0-9]{2}"
_ISO = re.compile(
    rf"\s*({DAY})(?:[Tt ]({CLOCK})(?::([0-9]{{2}})(?:[.,]([0-9]{{1,18}}))?)?"
    r" ?(?:([Zz]|UTC)|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?\s*"
)
_FIRST_DAY = date(1970, 1, 1).toordinal()


def iso_seconds(text: str) -> Fraction | None:
    """Return the seconds since 1970 of a time such as `2024-05-01 12:00:00.123+02:00`, exactly.

    A date means its midnight; without a zone a time is UTC. None if the text is not a time.
    """
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    day, clock, second, decimals, _, sign, zone_hours, zone_minutes = found.groups()
    hour, minute = map(int, (clock or "00:00").split(":"))
    away = 60 * int(zone_hours or 0) + int(zone_minutes or 0)
    over = (hour > 23, minute > 59, int(second or 0) > 59, int(zone_minutes or 0) > 59)
    if any(over) or away >= 24 * 60:
        return None
    try:
        days = date.fromisoformat(day).toordinal() - _FIRST_DAY
    except ValueError:
        return None
    minutes = 60 * (24 * days + hour) + minute - (-away if sign == "-" else away)
    return 60 * minutes + int(second or 0) + Fraction(int(decimals or 0), 10 ** len(decimals or ""))


def has_zone(text: str) -> bool:
    """Return whether a time includes its zone."""
    found = _ISO.fullmatch(text)
    return found is not None and any(found.group(5, 6))
