"""Edge features: columns of numbers, or of lists of numbers, to one finite float32 matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mode
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.streams.rows.checks import (
    Bools,
    Fault,
    Float32s,
    refuse,
    refuse_all,
    refuse_each,
    refuse_nulls,
)


def feature_columns(
    batch: pa.RecordBatch,
    names: Sequence[str],
    widths: Sequence[int],
    max_abs: float | None,
    fill_missing: float | None = None,
    *,
    what: str = "features",
) -> Float32s:
    """Return edge features, float32 `[B, sum(widths)]`, all finite: one column each, or lists.

    With `fill_missing` that stands for values that are null or NaN.

    Raises:
        BadRows: Where a value is missing, no number, not finite in float32, or beyond `max_abs`.
    """
    x = np.empty((len(batch), sum(widths)), dtype=np.float32)
    done = 0
    for name, width in zip(names, widths, strict=True):
        _fill(x[:, done : done + width], batch[name], name, fill_missing)
        done += width
    if fill_missing is not None:
        x[np.isnan(x)] = fill_missing
    finite = np.isfinite(x)
    if not finite.all():
        _refuse_values(~finite, x, names, widths, what)
    if max_abs is not None:
        _refuse_values(np.abs(x) > max_abs, x, names, widths)
    return x


def usual_value(values: Iterable[Any]) -> Any:
    """Return what a column mostly holds: the first value of that kind, None if all are missing.

    It is a list if most values are, of the length that most lists have; else of the type that most
    of the others have. Where there are as many of two kinds, the one that comes first counts.
    """
    there = [value for value in values if value is not None]
    lists = [value for value in there if isinstance(value, list)]
    if not there:
        return None
    if 2 * len(lists) + isinstance(there[0], list) > len(there):
        length = mode(map(len, lists))
        return next(value for value in lists if len(value) == length)
    others = [value for value in there if not isinstance(value, list)]
    kind = mode(map(type, others))
    return next(value for value in others if type(value) is kind)


def _refuse_values(
    bad: Bools, x: Float32s, names: Sequence[str], widths: Sequence[int], what: str = "features"
) -> None:
    """Raise `BadRows` for rows with a `bad` value; the first of a row is named."""

    def fault(row: int) -> Fault:
        column = int(bad[row].argmax())
        value = x[row, column]
        name = _name(names, widths, column)
        if np.isfinite(value):
            return "range", f"{name} is {value}, larger than max_abs in absolute value"
        text = f"{name} is {value} in float32; {what} must be finite: mend or drop it"
        return "nan" if np.isnan(value) else "inf", text

    refuse_each(np.asarray(bad.any(axis=1)), fault)


def _name(names: Sequence[str], widths: Sequence[int], column: int) -> str:
    """Return what a message calls one column of the matrix: `f0`, or `x[1]` in a list."""
    for name, width in zip(names, widths, strict=True):
        if column < width:
            return name if width == 1 else f"{name}[{column}]"
        column -= width
    raise IndexError(column)


def _fill(x: Float32s, array: pa.Array, name: str, missing: float | None) -> None:
    """Copy one column of the batch to its columns of `x`."""
    is_list = pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type)
    if missing is None or is_list:
        refuse_nulls(array, name)
    width = x.shape[1]
    if not is_list:
        if width != 1:
            text = f"{name} is of type {array.type}, expected lists as in most of the first rows"
            refuse_all(len(x), "width", text)
        _copy(x, array, name)
        return
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    text = f"{name} has {{}} values, expected {width} as in most of the first rows"
    refuse(lengths != width, "width", lambda row: text.format(lengths[row]))
    flat = array.flatten()
    if flat.null_count and missing is None:
        gone = flat.is_null().to_numpy(zero_copy_only=False).reshape(x.shape).any(axis=1)
        empty = f"{name} holds an empty value; features must be finite"
        refuse(gone, "null", lambda _: empty)
    _copy(x, flat, name)


def _copy(x: Float32s, values: pa.Array, name: str) -> None:
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        values = values.cast(pa.float64())  # or NumPy would have objects
    elif not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        refuse_all(len(x), "type", f"{name} is of type {kind}, expected numbers")
        return
    with np.errstate(over="ignore"):
        x[:] = values.to_numpy(zero_copy_only=False).reshape(x.shape)
