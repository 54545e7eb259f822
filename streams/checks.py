"""Checks of whole columns that name the first bad row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tgflow.streams.errors import RowError

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
INT64_MAX = 2**63 - 1


def refuse_nulls(array: pa.Array, name: str) -> None:
    """Raise a `RowError` at the first row without a value."""
    if array.null_count:
        missing = array.is_null().to_numpy(zero_copy_only=False)
        refuse(missing, "null", lambda _: f"{name} is missing; every event needs a value")


def refuse(bad: npt.NDArray[np.bool_], code: str, text: Callable[[int], str]) -> None:
    """Raise a `RowError` at the first row that is `bad`."""
    if bad.any():
        row = int(bad.argmax())
        raise RowError(row, code, text(row))


def refuse_wide(array: pa.Array, code: str, text: Callable[[int], str]) -> Int64s:
    """Return the integers of `array` as int64, refusing what does not fit."""
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64:
        refuse(values > np.uint64(INT64_MAX), code, text)
    return np.asarray(values, dtype=np.int64)


def first_invalid(array: pa.Array) -> int | None:
    """Return the first row that is not what its type says, as bad UTF-8; None if all are."""
    if not _is_invalid(array):
        return None
    return next(row for row in range(len(array)) if _is_invalid(array.slice(row, 1)))


def _is_invalid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False
