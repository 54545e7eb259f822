"""Converts columns of node ids of any supported type to arrays for the core."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

Ids: TypeAlias = "pa.Array | pa.ChunkedArray | np.ndarray[Any, Any] | Tensor | Sequence[int | str]"
Kind: TypeAlias = Literal["integers", "strings"]

MADE_FLOATS = (
    "is missing, which made floats of the column's integers; drop the row and convert it to int64"
)
_INT64_MAX = torch.iinfo(torch.int64).max
_CANONICAL = re.compile("-?(?:0|[1-9][0-9]{0,18})")
_SURELY = "^(0|[1-9][0-9]{0,17})$"


@dataclass(frozen=True, slots=True)
class IdColumn:
    """A column of ids: their kind, number, and arrays."""

    kind: Kind
    size: int
    parts: tuple[Any, Any]
    """Integers (int64) and None, or the offsets of strings (int64 `[size + 1]`) and their bytes."""


def id_column(ids: Ids, name: str) -> IdColumn:
    """Return `ids` as a column for the core, copied only if their type requires it.

    A column of no ids counts as integers. Raises ValueError with the row if an id is missing or
    exceeds int64, and TypeError if they are neither all integers nor all strings.
    """
    if isinstance(ids, Tensor):
        return _tensor_column(ids, name)
    if isinstance(ids, list) and {*map(type, ids)} == {int}:
        with suppress(OverflowError):  # reported below
            return IdColumn("integers", len(ids), (np.array(ids, dtype=np.int64), None))
    array = _arrow_array(ids, name)
    if array.null_count:
        row = array.is_null().index(True).as_py()
        raise ValueError(f"{name} of row {row} is missing; every event needs two ids")
    if pa.types.is_integer(array.type) or len(array) == 0:
        return _integer_column(array, name)
    if _is_string(array.type):
        strings = array.cast(pa.large_string())
        _, offsets, data = strings.buffers()
        begin = strings.offset
        rows = np.frombuffer(offsets, np.int64)[begin : begin + len(strings) + 1]
        return IdColumn("strings", len(strings), (rows, b"" if data is None else data))
    raise _not_ids(name, str(array.type))


def canonical(text: str) -> int | None:
    """Return the int64 that a text is, None for any other: for `007`, `+7`, `7.0` and ` 7`, too.

    A number and its text are the same id, in whatever column they are; other texts never are.
    """
    number = int(text) if _CANONICAL.fullmatch(text) else None
    return number if number is not None and abs(number) <= _INT64_MAX else None


def ids_of_kind(ids: pa.Array, kind: Kind) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return ids of any type as int64 or strings, and the rows that hold no id of that kind.

    Integers are as `canonical`. As strings, numbers and booleans are their text; the empty string,
    a null and NaN are no ids. TypeError of a type that holds neither texts nor numbers.
    """
    texts = _texts(ids)
    if kind == "strings":
        empty = pc.fill_null(pc.equal(pc.binary_length(texts), 0), True)
        return texts, empty.to_numpy(zero_copy_only=False)
    is_sure = pc.fill_null(pc.match_substring_regex(texts, _SURELY), False)
    sure = is_sure.to_numpy(zero_copy_only=False)
    numbers, bad = np.zeros(len(texts), dtype=np.int64), ~sure
    numbers[sure] = texts.filter(is_sure).cast(pa.int64()).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(bad).tolist():
        number = canonical(texts[row].as_py() or "")
        if number is not None:
            numbers[row], bad[row] = number, False
    return pa.array(numbers), bad


def first_missing(arrays: Iterable[pa.Array]) -> int | None:
    """Return the row of the first null or NaN in consecutive arrays, None without."""
    num = 0
    for array in arrays:
        if (row := pc.is_null(array, nan_is_null=True).index(True).as_py()) >= 0:
            return num + int(row)
        num += len(array)
    return None


def read_ids(column: Any, kind: Kind) -> pa.Array:
    """Return a column of ids as `ids_of_kind`; ValueError with the first row that is no such id."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    is_float = kind == "integers" and pa.types.is_floating(array.type)
    if is_float and (row := first_missing([array])) is not None:
        raise ValueError(f"row {row}: the id {MADE_FLOATS}")
    try:
        found, bad = ids_of_kind(array, kind)
    except TypeError as error:
        raise ValueError(f"ids are integers or strings, got {error}") from None
    if bad.any():
        value = array[row := int(bad.argmax())].as_py()
        text = f"row {row}: {value!r} is no id: those of the stream are {kind}"
        if kind == "integers" and value is not None:
            text += ", and 7 is not 007, +7 or 7.0; a run with id_kind='string' takes text"
        raise ValueError(text)
    return found


def _texts(ids: pa.Array) -> pa.Array:
    """Return the text of each id, null for NaN."""
    kind = ids.type
    if pa.types.is_dictionary(kind):
        return _texts(ids.dictionary_decode())
    if pa.types.is_floating(kind):
        values = ids.to_numpy(zero_copy_only=False)
        return pa.array([None if np.isnan(x) else str(x) for x in values], pa.string())
    is_number = pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)
    if not (is_number or _is_string(kind) or pa.types.is_null(kind)):
        raise TypeError(str(kind))
    return ids.cast(pa.string())


def list_array(ids: Sequence[Any], strings: pa.DataType | None = None) -> pa.Array:
    """Return a list of ids as an array of its type, or of `strings` (None: `pa.string()`).

    The type is passed to Arrow where all ids have one: to infer it, Arrow tries to import pandas
    each time.
    """
    kinds = {*map(type, ids)}
    types = {int: pa.int64(), str: strings or pa.string()}
    kind = types.get(kinds.pop()) if len(kinds) == 1 else None
    return pa.array(ids, kind, from_pandas=True)


def _tensor_column(ids: Tensor, name: str) -> IdColumn:
    if ids.dim() != 1:
        raise ValueError(f"{name} must be one column, got a tensor of shape {list(ids.shape)}")
    no_integers = ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool
    if no_integers and len(ids):
        raise _not_ids(name, str(ids.dtype))
    if ids.dtype == torch.uint64:
        return _integer_column(pa.array(ids.cpu().numpy()), name)
    values = ids.to("cpu", torch.int64).contiguous()
    return IdColumn("integers", len(values), (values, None))


def _arrow_array(ids: Ids, name: str) -> pa.Array:
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    if not isinstance(ids, pa.Array):
        ids = _to_arrow(ids, name)
    return ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids


def _to_arrow(ids: Any, name: str) -> pa.Array:
    if isinstance(ids, str | bytes):
        raise TypeError(f"{name} must be a column of ids, got one {type(ids).__name__}")
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise ValueError(f"{name} must be one column, got an array of shape {list(ids.shape)}")
    try:
        if isinstance(ids, list):
            return list_array(ids, pa.large_string())
        array = pa.array(ids, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        raise _first_fault(list(ids), name) from None
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _first_fault(ids: list[Any], name: str) -> Exception:
    """Return the error of the first id that does not fit a column of one kind."""
    for row, value in enumerate(ids):
        if isinstance(value, int | np.integer) and not -_INT64_MAX - 1 <= value <= _INT64_MAX:
            return _too_large(name, row, value)
        if type(value) is not type(ids[0]):
            return TypeError(
                f"{name} mixes {type(ids[0]).__name__} and {type(value).__name__} "
                f"(row {row}: {value!r}); make them all integers or all strings"
            )
    return _not_ids(name, type(ids[0]).__name__)


def _integer_column(array: pa.Array, name: str) -> IdColumn:
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64 and values.max(initial=0) > _INT64_MAX:
        row = int(np.argmax(values > _INT64_MAX))
        raise _too_large(name, row, values[row])
    values = np.ascontiguousarray(values, np.int64)
    return IdColumn("integers", len(values), (values, None))


def _is_string(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _not_ids(name: str, got: str) -> TypeError:
    return TypeError(f"{name} must be integers or strings, got {got}")


def _too_large(name: str, row: int, value: object) -> ValueError:
    return ValueError(
        f"{name} of row {row} is {value}, which exceeds int64; give such ids as strings"
    )
