"""What rows must satisfy, and how a check of a whole column names all rows that do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tgflow.units import INT64_MAX

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]


Fault = tuple[str, str]
"""A code of `tgflow.streams.errors.CODES`, and what was wrong and what arrived."""


class BadRows(Exception):
    """Rows of a batch that fail one check.

    Args:
        rows: Which, bool `[B]`; at least one.
        fault: Returns what is wrong with one of them.
    """

    def __init__(self, rows: Bools, fault: Callable[[int], Fault]) -> None:
        super().__init__(f"{np.count_nonzero(rows)} bad rows")
        self.rows = rows
        self.fault = fault


def refuse(bad: Bools, code: str, text: Callable[[int], str]) -> None:
    """Raise `BadRows` if a row is `bad`."""
    if bad.any():
        raise BadRows(bad, lambda row: (code, text(row)))


def refuse_each(bad: Bools, fault: Callable[[int], Fault]) -> None:
    """Raise `BadRows` if a row is `bad`; each may have a code of its own."""
    if bad.any():
        raise BadRows(bad, fault)


def refuse_all(num_rows: int, code: str, text: str) -> None:
    """Raise `BadRows` for every row, if there is one: the column itself is wrong."""
    refuse(np.ones(num_rows, dtype=np.bool_), code, lambda _: text)


def refuse_nulls(array: pa.Array, name: str) -> None:
    """Raise `BadRows` if a value is missing."""
    if array.null_count:
        missing = array.is_null().to_numpy(zero_copy_only=False)
        refuse(missing, "null", lambda _: f"{name} is missing; every event needs a value")


def refuse_wide(array: pa.Array, fault: Callable[[int], Fault]) -> Int64s:
    """Return the integers of `array` as int64, refusing what does not fit."""
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64:
        refuse_each(values > np.uint64(INT64_MAX), fault)
    return np.asarray(values, dtype=np.int64)


def invalid_rows(array: pa.Array) -> Bools | None:
    """Return which values are not what their type says: bad UTF-8, an index out of range.

    None if all are; it then costs one pass. Else about twice the logarithm of the length for each.
    """
    if not _is_invalid(array):
        return None
    rows = np.zeros(len(array), dtype=np.bool_)
    _mark_invalid(array, rows)
    return rows


def _mark_invalid(array: pa.Array, rows: Bools) -> None:
    """Mark the invalid rows of an array that holds some."""
    if len(array) == 1:
        rows[0] = True
        return
    middle = len(array) // 2
    for half, marks in ((array[:middle], rows[:middle]), (array[middle:], rows[middle:])):
        if _is_invalid(half):
            _mark_invalid(half, marks)


def _is_invalid(array: pa.Array) -> bool:
    kind = array.type
    flat = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    try:
        array.validate(full=not flat)  # numbers are valid whatever their bits
    except pa.ArrowInvalid:
        return True
    return False
