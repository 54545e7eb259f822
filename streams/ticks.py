"""Times (and labels): numbers of any type to int64 ticks, exactly or not at all."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from fractions import Fraction

import numpy as np
import pyarrow as pa

from tgflow.streams.checks import INT64_MAX, Int64s, refuse, refuse_nulls, refuse_wide
from tgflow.streams.errors import RowError, shown
from tgflow.streams.schema import UNSCALED, Scale
from tgflow.units import ticks_per_unit

PRECISION = 22  # digits a decimal of a text file may have: 19 of an int64, and spare ones


def decimal_type(scale: Scale) -> pa.DataType:
    """Return the Arrow type that text is read to, so that no tick is ever a float."""
    return pa.decimal128(PRECISION, scale.digits)


def tick_column(array: pa.Array, name: str, scale: Scale) -> Int64s:
    """Return times (or labels) as int64 ticks `[B]`.

    Integers, decimals and floats are in `scale.unit`; timestamps, durations and dates know
    their own unit.

    Raises:
        RowError: At the first value that is missing, no number, or no whole tick in int64.
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
    raise RowError(0, "time_type", f"{name} is of type {kind}, expected numbers")


def _integer_ticks(array: pa.Array, name: str, scale: Scale, per_unit: Fraction) -> Int64s:
    def text(row: int) -> str:
        return f"{name} is {array[row]}, beyond int64 ticks of 1 {scale.tick}"

    values = refuse_wide(array, "time_range", text)
    limit = INT64_MAX // per_unit.numerator
    refuse((values > limit) | (values < -limit), "time_range", text)
    whole, rest = np.divmod(values * per_unit.numerator, per_unit.denominator)
    refuse(
        rest != 0,
        "time_precision",
        lambda row: (
            f"{name} is {array[row]}, between two ticks of 1 {scale.tick}; pass a finer tick_unit"
        ),
    )
    return np.asarray(whole, dtype=np.int64)


def _timestamp_ticks(array: pa.Array, name: str, unit: str, scale: Scale) -> Int64s:
    try:
        per_unit = ticks_per_unit(unit, scale.tick)
    except ValueError as error:
        text = f"{name} is of type {array.type}; pass time_unit={unit!r}"
        raise RowError(0, "time_type", text) from error
    numbers = array.cast(pa.int32()) if unit == "day" else array.cast(pa.int64())
    try:
        return _integer_ticks(numbers, name, scale, per_unit)
    except RowError as fault:
        text = f"{name} is {array[fault.row]}, no whole int64 number of {scale.tick}"
        raise RowError(fault.row, fault.code, f"{text}; pass tick_unit={unit!r}") from fault


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
        numbers = enumerate(array.to_pylist())
        return np.array([_exact_ticks(value, row, name, scale) for row, value in numbers])
    words = np.frombuffer(array.buffers()[1], dtype="<i8").reshape(-1, 2)
    low, high = words[array.offset : array.offset + len(array)].T
    step = Fraction(scale.per_unit, 10**scale.digits)
    whole, rest = (low, 0) if step.denominator == 1 else np.divmod(low, step.denominator)
    limit = INT64_MAX // step.numerator
    unsure = (high != low >> 63) | (rest != 0) | (whole > limit) | (whole < -limit)
    ticks: Int64s = np.multiply(whole, step.numerator)
    for row in np.flatnonzero(unsure):  # mostly faults, which end it
        ticks[row] = _exact_ticks(array[int(row)].as_py(), int(row), name, scale)
    return ticks


def _exact_ticks(value: Decimal, row: int, name: str, scale: Scale) -> int:
    fault = number_fault(name, value, scale)
    if fault is not None:
        raise RowError(row, *fault)
    return int(Fraction(value) * scale.per_unit)


def _float_ticks(array: pa.Array, name: str, scale: Scale) -> Int64s:
    """Take a float for the decimal number of at most `scale.digits` decimals that it stands for."""
    values = array.to_numpy(zero_copy_only=False)
    ten = 10.0**scale.digits
    scaled = np.rint(values.astype(np.float64) * ten)
    held = np.abs(scaled) < 2.0 ** (np.finfo(values.dtype).nmant + 1)
    bad = ~held | ((scaled / ten).astype(values.dtype) != values)
    step = Fraction(scale.per_unit, 10**scale.digits)
    whole, rest = np.divmod(np.where(bad, 0, scaled).astype(np.int64), step.denominator)
    bad |= (rest != 0) | (np.abs(whole) > INT64_MAX // step.numerator)
    if bad.any():
        row = int(bad.argmax())
        fault = number_fault(name, Decimal(str(values[row])), scale)
        text = f"{name} is {values[row]}, which {values.dtype} cannot hold to the tick"
        raise RowError(row, *(fault or ("time_precision", f"{text}; store integers")))
    return np.asarray(whole * step.numerator)


def number_fault(name: str, value: object, scale: Scale) -> tuple[str, str] | None:
    """Return the code and text of what is wrong with a time (or label), None if nothing is.

    Args:
        name: The column, for the text.
        value: A number, or text as it stands in a file.
        scale: How it should become a tick.
    """
    if value is None or value == "":
        return "time_type", f"{name} is empty, expected {_expected(scale)}"
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or isinstance(value, bool):
        what = str(number).lower() if isinstance(value, Decimal) else shown(value)
        return "time_type", f"{name} is {what}, expected {_expected(scale)}"
    if number and number.adjusted() > PRECISION:  # before anything expands it
        return "time_range", f"{name} is {shown(value)}, beyond int64 ticks of 1 {scale.tick}"
    if (number and number.adjusted() < -PRECISION) or (Fraction(number) * scale.per_unit) % 1:
        return "time_precision", _too_fine(name, value, number, scale)
    if abs(Fraction(number) * scale.per_unit) > INT64_MAX:
        return "time_range", f"{name} is {value}, beyond int64 ticks of 1 {scale.tick}"
    return None


def _expected(scale: Scale) -> str:
    return "a whole number" if scale is UNSCALED else f"a number of {scale.unit}"


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
