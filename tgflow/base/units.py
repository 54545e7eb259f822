"""Time units, parsers of numbers, sizes and durations, and the text of durations."""

from __future__ import annotations

import math
import operator
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Number
from typing import TYPE_CHECKING, SupportsIndex

if TYPE_CHECKING:
    from torch import Tensor

_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86_400 * 10**9,
    "day": 86_400 * 10**9,
}

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
"""The first and the last possible tick or position, also "no limit" in the core."""

MOST_DIGITS = 30
"""Most digits before and behind the point for a number to be a time in any unit."""

UNITS = (*_NANOSECONDS, "tick")
"""The names of the units. A `tick` has no known length: it counts as one second."""


def seconds_per_tick(unit: str) -> float:
    """Return the length of one `unit` in seconds."""
    check_unit(unit)
    return 1.0 if unit == "tick" else _NANOSECONDS[unit] / 10**9


def seconds_of(ticks: Tensor, seconds_per_tick: float) -> Tensor:
    """Return int64 differences of times in seconds, float64; does not synchronize.

    The same bits in every unit that can hold them, and as `seconds_of` of the core: whole seconds
    are divided off first, as a product with 1e-9, or a quotient of more than 2**53 ticks, would be
    rounded by the unit.
    """
    if seconds_per_tick >= 1:
        return ticks.double() * seconds_per_tick
    per_second = ticks.new_full((), round(1 / seconds_per_tick))  # CUDA multiplies for a number
    whole = ticks.div(per_second, rounding_mode="trunc")
    return whole.double() + (ticks - whole * per_second).double() / per_second.double()


def seconds_in(ticks: int, seconds_per_tick: float) -> float:
    """Return the seconds in a number of ticks, rounded once: the same in every unit."""
    if seconds_per_tick >= 1:
        return ticks * seconds_per_tick
    return ticks / round(1 / seconds_per_tick)


def ticks_per_unit(unit: str, tick: str) -> Fraction:
    """Return the number of ticks of unit `tick` in one `unit`, exactly.

    Raises:
        ValueError: If a name is unknown, or one is `tick` and the other is not.
    """
    check_unit(unit)
    check_unit(tick)
    if unit == tick:
        return Fraction(1)
    if "tick" in (unit, tick):
        raise ValueError(f"a tick has no known length: cannot turn {unit!r} into {tick!r}")
    return Fraction(_NANOSECONDS[unit], _NANOSECONDS[tick])


def check_unit(unit: str) -> None:
    """Raise `ValueError` unless `unit` is one of `UNITS`."""
    if unit not in UNITS:
        raise ValueError(f"unknown time unit {unit!r}; choose one of {', '.join(UNITS)}")


def exact_number(value: object) -> Fraction | None:
    """Return a number, or the number in a text such as "1.5e9", exactly; None otherwise.

    None, too, for one that is not finite, is 10**30 or more, or is below 10**-30 but not 0, so that
    1e-999999999 is never expanded.
    """
    if isinstance(value, bool) or not isinstance(value, Number | str):
        return None
    number = exact_decimal(str(value))
    return Fraction(number) if number is not None and abs(number.adjusted()) < MOST_DIGITS else None


def exact_decimal(text: str) -> Decimal | None:
    """Return the number in a text, however large; None for `nan`, `1_000`, `0x10` and such."""
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() and text.isascii() and "_" not in text else None


def parse_bytes(size: SupportsIndex | str) -> int:
    """Return a size in bytes: a whole number, or text such as "512MB", "8 GB" or "1.5GiB".

    Raises:
        TypeError: If it is neither a whole number nor text.
        ValueError: If it is text of another form, negative, or 2**63 and more.
    """
    if isinstance(size, str):
        unit = r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?\s*"
        if (match := re.fullmatch(unit, size, re.IGNORECASE)) is None:
            raise ValueError(f"a size is bytes or text such as '512MB' or '8GB', got {size!r}")
        number, prefix, binary = match.groups()
        scale = (1024 if binary else 1000) ** " KMGT".index((prefix or " ").upper())
        num_bytes = int(Fraction(number) * scale)
    else:
        try:
            num_bytes = operator.index(size)
        except TypeError:
            raise TypeError(
                "a size is a whole number of bytes or text such as '512MB' or '8GB', "
                f"got {size!r}; round it with int(...)"
            ) from None
    if not 0 <= num_bytes <= INT64_MAX:
        raise ValueError(
            f"a size in bytes is at least 0 and below 2**63, got {size!r}; "
            "for no limit leave it out"
        )
    return num_bytes


def parse_seconds(span: float | str) -> float:
    """Return a duration in seconds: a number, or text such as "500ms", "1.5s" or "2m"."""
    if isinstance(span, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)?\s*", span)
        seconds = 0.0
        if match is not None:
            seconds = float(Fraction(match[1]) * ticks_per_unit(match[2] or "s", "s"))
    else:
        seconds = float(span)
    if not 0 < seconds < float("inf"):
        raise ValueError(
            f"a span of time is more than 0, such as '500ms', '1s' or '2m', got {span!r}"
        )
    return seconds


def ticks_in(span: float | str, unit: str) -> Fraction:
    """Return a duration, as in `parse_seconds`, in ticks of 1 `unit`, exactly."""
    seconds = Fraction(repr(parse_seconds(span)))  # as written: 0.1 is 100 ms
    return seconds if unit == "tick" else seconds * ticks_per_unit("s", unit)


def parse_timeout(span: float | str) -> float:
    """Return a duration in seconds as `parse_seconds`; "none" is infinite."""
    return math.inf if span == "none" else parse_seconds(span)


def duration(seconds: float) -> str:
    """Write a time span with its two largest units, such as 1 min 12 s."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left, parts = round(seconds), []
    for name, size in units:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])
