"""Edge features: columns of numbers, or of lists of numbers, to one finite float32 matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.streams.checks import Float32s, refuse, refuse_nulls
from tgflow.streams.errors import RowError


def feature_columns(batch: pa.RecordBatch, names: Sequence[str], x_dim: int) -> Float32s:
    """Return edge features, float32 `[B, x_dim]`, all finite: one column each, or lists."""
    x = np.empty((len(batch), x_dim), dtype=np.float32)
    done = 0
    for name in names:
        done += _fill(x[:, done:], batch[name], name)
    if done != x_dim:
        raise RowError(0, "width", f"{done} features, expected {x_dim} as in the first row")
    finite = np.isfinite(x)
    if not finite.all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        name = names[column] if len(names) == x_dim else f"{names[0]}[{column}]"
        text = f"{name} is {x[row, column]} in float32; features must be finite: mend or drop it"
        raise RowError(row, "nan" if np.isnan(x[row, column]) else "inf", text)
    return x


def _fill(x: Float32s, array: pa.Array, name: str) -> int:
    """Copy one column into the first columns of `x`; return how many it fills."""
    refuse_nulls(array, name)
    kind = array.type
    if not pa.types.is_list(kind) and not pa.types.is_fixed_size_list(kind):
        _copy(x[:, :1], array, name)
        return 1
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    width = int(lengths[0]) if len(lengths) else 0
    if width > x.shape[1]:
        raise RowError(0, "width", f"{name} has {width} values, expected {x.shape[1]}")
    text = f"{name} has {{}} values, expected {width} as in the first row"
    refuse(lengths != width, "width", lambda row: text.format(lengths[row]))
    flat = array.flatten()
    if flat.null_count:
        row = flat.is_null().to_numpy(zero_copy_only=False).argmax() // width
        raise RowError(int(row), "nan", f"{name} holds an empty value; features must be finite")
    _copy(x[:, :width], flat, name)
    return width


def _copy(x: Float32s, values: pa.Array, name: str) -> None:
    kind = values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise RowError(0, "type", f"{name} is of type {kind}, expected numbers")
    with np.errstate(over="ignore"):
        x[:] = values.to_numpy(zero_copy_only=False).reshape(x.shape)
