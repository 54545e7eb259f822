"""Times (and labels): numbers of any type to int64 ticks, exactly or not at all."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tgflow.iso import EXAMPLE, iso_seconds
from tgflow.streams.errors import shown
from tgflow.streams.rows.checks import (
    BadRows,
    Fault,
    Int64s,
    refuse_all,
    refuse_each,
    refuse_nulls,
    refuse_wide,
)
from tgflow.streams.rows.columns import is_text
from tgflow.streams.rows.iso_column import plain_ticks
from tgflow.streams.rows.schema import UNSCALED, Scale
from tgflow.units import INT64_MAX, exact_decimal, ticks_per_unit

_WHOLE = re.compile(r"-?[0-9]{1,18}")
PRECISION = 22  # digits a decimal of a text file may have: 19 of an int64, and spare ones


MOST_DECIMALS = 38
"""Of a number that Arrow reads from text: where one has more, it reads memory that is no table."""
_TINY = [
    re.compile(letter + rb"-(?:0*[2-9][0-9]|[0-9]{3,}|(?<=[0-9]{19}[eE]-))")
    for letter in (b"e", b"E")  # a pattern each: one that begins with a letter is found 8x as fast
]


def may_be_tiny(text: bytes | bytearray) -> bool:
    """Return whether a number in a text may have more than `MOST_DECIMALS`; seldom in vain."""
    return any(pattern.search(text) for pattern in _TINY)


def has_too_many_decimals(value: object) -> bool:
    """Return whether a number, or a text that is one, has more than `MOST_DECIMALS`."""
    number = exact_decimal(str(value))
    return number is not None and int(number.as_tuple().exponent) < -MOST_DECIMALS


def time_type(scale: Scale) -> pa.DataType:
    """Return the Arrow type that text is read to, so that no tick is ever a float."""
    return pa.string() if scale.is_text else pa.decimal128(PRECISION, scale.digits)


def tick_column(array: pa.Array, name: str, scale: Scale) -> Int64s:
    """Return times (or labels) as int64 ticks `[B]`.

    Integers, decimals and floats are in `scale.unit`; timestamps, durations and dates know
    their own unit. Texts are times such as `2024-05-01T12:00:00Z`, or numbers.

    Raises:
        BadRows: Where a value is missing, no number, or no whole tick in int64.
    """
    refuse_nulls(array, name)
    kind = array.type
    if pa.types.is_decimal(kind):
        return _decimal_ticks(array, name, scale)
    if pa.types.is_floating(kind):
        return _float_ticks(array, name, scale)
    if pa.types.is_integer(kind):
        return _integer_ticks(array, name, scale, Fraction(scale.per_unit))
    if pa.types.is_boolean(kind) and scale is UNSCALED:
        return _integer_ticks(array.cast(pa.int8()), name, scale, Fraction(1))
    if (unit := _own_unit(kind)) and scale is not UNSCALED:
        return _timestamp_ticks(array, name, unit, scale)
    if is_text(kind) and scale is not UNSCALED:
        return _text_ticks(array, name, scale.of_text())
    refuse_all(len(array), scale.fault_codes.type, f"{name} is of type {kind}, expected numbers")
    return np.empty(0, dtype=np.int64)


def _integer_ticks(array: pa.Array, name: str, scale: Scale, per_unit: Fraction) -> Int64s:
    def too_large(row: int) -> Fault:
        text = f"{name} is {array[row]}, beyond int64 ticks of 1 {scale.tick}"
        return scale.fault_codes.range, text

    def too_fine(row: int) -> Fault:
        text = f"{name} is {array[row]}, between two ticks of 1 {scale.tick}"
        return scale.fault_codes.precision, f"{text}; pass a finer tick_unit"

    values = refuse_wide(array, too_large)
    if per_unit == 1:
        refuse_each(values < -INT64_MAX, too_large)
        return values.copy()  # torch wants memory that may be written
    limit = INT64_MAX // per_unit.numerator
    refuse_each((values > limit) | (values < -limit), too_large)
    whole, rest = np.divmod(values * per_unit.numerator, per_unit.denominator)
    refuse_each(rest != 0, too_fine)
    return np.asarray(whole, dtype=np.int64)


def _timestamp_ticks(array: pa.Array, name: str, unit: str, scale: Scale) -> Int64s:
    try:
        per_unit = ticks_per_unit(unit, scale.tick)
    except ValueError:
        text = f"{name} is of type {array.type}; pass time_unit={unit!r}"
        refuse_all(len(array), "time_type", text)
        return np.empty(0, dtype=np.int64)
    numbers = array.cast(pa.int32()) if unit == "day" else array.cast(pa.int64())
    try:
        return _integer_ticks(numbers, name, scale, per_unit)
    except BadRows as bad:
        codes = bad.fault

        def fault(row: int) -> Fault:
            text = f"{name} is {array[row]}, no whole int64 number of {scale.tick}"
            return codes(row)[0], f"{text}; pass tick_unit={unit!r}"

        raise BadRows(bad.rows, fault) from None


def _own_unit(kind: pa.DataType) -> str | None:
    """Return the unit that a column's own type declares, or None."""
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return str(kind.unit)
    if pa.types.is_date(kind):
        return "day" if kind == pa.date32() else "ms"
    return None


def _decimal_ticks(array: pa.Array, name: str, scale: Scale) -> Int64s:
    """Read the decimals' low words where they are whole; the high ones may only hold the sign."""
    if len(array) == 0:
        return np.empty(0, dtype=np.int64)
    if not pa.types.is_decimal128(array.type) or array.type.scale != scale.digits:
        every = np.arange(len(array))
        return _exact_ticks(array, every, np.zeros(len(array), dtype=np.int64), name, scale)
    words = np.frombuffer(array.buffers()[1], dtype="<i8").reshape(-1, 2)
    low, high = words[array.offset : array.offset + len(array)].T
    step = Fraction(scale.per_unit, 10**scale.digits)
    whole, rest = (low, 0) if step.denominator == 1 else np.divmod(low, step.denominator)
    limit = INT64_MAX // step.numerator
    unsure = (high != low >> 63) | (rest != 0) | (whole > limit) | (whole < -limit)
    ticks: Int64s = np.multiply(whole, step.numerator)
    return _exact_ticks(array, np.flatnonzero(unsure), ticks, name, scale)


def _exact_ticks(
    array: pa.Array, rows: npt.NDArray[np.intp], ticks: Int64s, name: str, scale: Scale
) -> Int64s:
    """Fill in the `ticks` of decimals at `rows`, one by one and exactly, and return all."""
    faults: dict[int, Fault] = {}
    for row in rows.tolist():
        value = array[row].as_py()
        fault = number_fault(name, value, scale)
        if fault is None:
            ticks[row] = int(Fraction(value) * scale.per_unit)
        else:
            faults[row] = fault
    if faults:
        bad = np.zeros(len(ticks), dtype=np.bool_)
        bad[list(faults)] = True
        refuse_each(bad, faults.__getitem__)
    return ticks


def _float_ticks(array: pa.Array, name: str, scale: Scale) -> Int64s:
    """Take a float for the decimal number of at most `scale.digits` decimals that it stands for."""
    values = array.to_numpy(zero_copy_only=False)

    def fault(row: int) -> Fault:
        text = f"{name} is {values[row]}, which {values.dtype} cannot hold to the tick"
        too_fine = scale.fault_codes.precision, f"{text}; store integers"
        return number_fault(name, Decimal(str(values[row])), scale) or too_fine

    ten = 10.0**scale.digits
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint(values.astype(np.float64) * ten)
        held = np.abs(scaled) < 2.0 ** (np.finfo(values.dtype).nmant + 1)
        bad = ~held | ((scaled / ten).astype(values.dtype) != values)
    step = Fraction(scale.per_unit, 10**scale.digits)
    whole, rest = np.divmod(np.where(bad, 0, scaled).astype(np.int64), step.denominator)
    bad |= (rest != 0) | (np.abs(whole) > INT64_MAX // step.numerator)
    refuse_each(bad, fault)
    return np.asarray(whole * step.numerator)


def _text_ticks(array: pa.Array, name: str, scale: Scale) -> Int64s:
    """Read all texts at once if they are plain, else one by one."""
    ticks = plain_ticks(array, scale.tick)
    if ticks is not None:
        return ticks
    ticks, faults = np.zeros(len(array), dtype=np.int64), {}
    for row, text in enumerate(array.to_pylist()):
        fault = time_fault(name, text, scale)
        if fault is None:
            ticks[row] = int(_exact(text, scale))
        else:
            faults[row] = fault
    bad = np.zeros(len(ticks), dtype=np.bool_)
    bad[list(faults)] = True
    refuse_each(bad, faults.__getitem__)
    return ticks


def _exact(text: str, scale: Scale) -> Fraction:
    """Return how many ticks a text stands for that is a time or a number."""
    seconds = iso_seconds(text)
    if seconds is None:
        return Fraction(text.strip()) * scale.per_unit
    return seconds * ticks_per_unit("s", scale.tick)


def time_fault(name: str, value: object, scale: Scale) -> Fault | None:
    """Return what is wrong with a time of a file, None if nothing is; see `number_fault`."""
    if not scale.is_text:
        return number_fault(name, value, scale)
    if value is not None and not isinstance(value, str):
        text = f"{name} is {shown(value)}, expected text such as {EXAMPLE} as in the first rows"
        return scale.fault_codes.type, text
    if value is None or iso_seconds(value) is None:
        return number_fault(name, value, scale)
    if scale.tick == "tick":
        text = f"{name} is {value}, and ticks have no known length; pass time_unit='s'"
        return scale.fault_codes.type, text
    ticks = _exact(value, scale)
    if ticks.denominator != 1:
        fine = next(u for u in ("ms", "us", "ns", "") if not u or _is_whole(value, u))
        way_out = f"pass tick_unit={fine!r} to keep it exactly" if fine else "write fewer decimals"
        text = f"{name} is {value}, between two ticks of 1 {scale.tick}; {way_out}"
        return scale.fault_codes.precision, text
    if abs(ticks) > INT64_MAX:
        return scale.fault_codes.range, f"{name} is {value}, beyond int64 ticks of 1 {scale.tick}"
    return None


def _is_whole(text: str, unit: str) -> bool:
    return ((iso_seconds(text) or Fraction(0)) * ticks_per_unit("s", unit)).denominator == 1


def number_fault(name: str, value: object, scale: Scale) -> Fault | None:
    """Return the code and text of what is wrong with a time (or label), None if nothing is.

    Args:
        name: The column, for the text.
        value: A number, or text as it stands in a file.
        scale: How it should become a tick.
    """
    if isinstance(value, str) and _WHOLE.fullmatch(value):  # 20 times faster than what follows
        ticks = int(value) * scale.per_unit
        if abs(ticks) <= INT64_MAX:
            return None
    if value is None or value == "":
        return "null", f"{name} is empty, expected {_expected(scale)}"
    number = exact_decimal(str(value))
    if number is None or isinstance(value, bool):
        what = str(value).lower() if isinstance(value, Decimal) else shown(value)
        return scale.fault_codes.type, f"{name} is {what}, expected {_expected(scale)}"
    if number and number.adjusted() > PRECISION:  # before anything expands it
        too_large = f"{name} is {shown(value)}, beyond int64 ticks of 1 {scale.tick}"
        return scale.fault_codes.range, too_large
    if (number and number.adjusted() < -PRECISION) or (Fraction(number) * scale.per_unit) % 1:
        return scale.fault_codes.precision, _too_fine(name, value, number, scale)
    if abs(Fraction(number) * scale.per_unit) > INT64_MAX:
        return scale.fault_codes.range, f"{name} is {value}, beyond int64 ticks of 1 {scale.tick}"
    return None


def _expected(scale: Scale) -> str:
    if scale is UNSCALED:
        return "a whole number"
    number = f"a number of {scale.unit}"
    return f"{number}, or a time such as {EXAMPLE}" if scale.is_text else number


def _too_fine(name: str, value: object, number: Decimal, scale: Scale) -> str:
    if scale is UNSCALED:
        return f"{name} is {value}, expected a whole number"
    way_out = "write times as whole numbers"
    for tick in ("s", "ms", "us", "ns") if scale.unit != "tick" else ():
        per_unit = ticks_per_unit(scale.unit, tick)
        if number.adjusted() >= -PRECISION and (Fraction(number) * per_unit).denominator == 1:
            way_out = f"pass tick_unit={tick!r} to keep it exactly"
            break
    return f"{name} is {value}, between two ticks of 1 {scale.tick}; {way_out}"
