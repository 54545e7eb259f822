"""Unpickler for dicts of arrays of whole numbers, the format of TGB's negatives."""

from __future__ import annotations

import mmap
import pickle
import pickletools
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tgflow.streams.errors import StreamError

Key = tuple[int, int, int]
Int64s = npt.NDArray[np.int64]

MAX_GROWTH = 16
"""Maximum result bytes per byte of the file; one array may be the value of many keys."""
_OPCODES = {
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE", "EMPTY_LIST", "APPEND", "APPENDS"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS"),
    *("BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
}
_NAMES = {ord(each.code): each.name for each in pickletools.opcodes}
_DTYPES = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "O8")
_DAMAGE = (
    *(ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError),
    *(EOFError, RecursionError, struct.error, pickle.UnpicklingError),
)
_NOT_WHOLE = "an array that is not a list of whole numbers"


class _Refused(Exception):
    pass


class _Found(dict[Key, "npt.NDArray[Any] | list[Any]"]):
    """A dict that checks keys before hashing; a deeply nested tuple would overflow the stack."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(value, _Values):
            raise _Refused("a value that is not an array")
        if not (isinstance(key, tuple) and len(key) == 3):
            raise _Refused("a key that is not (src, dst, t)")
        if any(type(part) not in (int, float) or part != int(part) for part in key):
            raise _Refused("a key of other than whole numbers")
        src, dst, t = map(int, key)
        super().__setitem__((src, dst, t), value.found)


class _DType:
    """Replaces a dtype, whose own `__setstate__` trusts the file."""

    def __init__(self, code: str, *_: bool) -> None:
        if code not in _DTYPES:
            raise _Refused(f"the dtype {code!r:.20}")
        self.found = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.found = self.found.newbyteorder(state[1])


class _Values:
    """Replaces an array, whose own `__setstate__` trusts the file."""

    found: npt.NDArray[Any] | list[Any]
    """A view of the file's bytes, or the elements of an array of objects."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, _, data = state
        is_list = dtype.found.kind == "O" and isinstance(data, list)
        self.found = data if is_list else np.frombuffer(data, dtype.found)
        if shape != (len(self.found),):
            raise _Refused(_NOT_WHOLE)


def _of_buffer(data: bytes, dtype: _DType, shape: tuple[int], _: str) -> _Values:
    values = _Values()
    values.__setstate__((1, shape, dtype, False, data))
    return values


def _scalar(dtype: _DType, data: bytes) -> int | float:
    [value] = np.frombuffer(data, dtype.found).tolist()
    return value  # type: ignore[no-any-return]


_NUMPY: dict[str, Callable[..., Any]] = {
    "multiarray _reconstruct": lambda *_: _Values(),
    "multiarray scalar": _scalar,
    "numeric _frombuffer": _of_buffer,
}
_CALLABLE: dict[str, Callable[..., Any]] = {
    **{f"{core}.{name}": x for core in ("numpy.core", "numpy._core") for name, x in _NUMPY.items()},
    "numpy ndarray": lambda *_: _Values(),
    "numpy dtype": _DType,
    "_codecs encode": lambda text, _: text.encode("latin1"),
    "__builtin__ bytes": lambda: b"",
}


def read_pickled_arrays(path: Path) -> dict[Key, Int64s]:
    """Read a pickled dict of arrays as int64; each key is three integers.

    The arrays are of integers, of floats that are whole numbers, as TGB's generator writes where
    a source has no history, or of Python's integers as objects. Nothing named in the file is
    imported or called.

    Raises:
        StreamError: If the file contains anything else, or is damaged.
    """
    if not path.stat().st_size:  # an empty file cannot be mapped
        raise StreamError(
            f"{path}, byte 0", "syntax", "it is not a whole pickle: the file is empty"
        )
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            found = _ArrayUnpickler(data).load()
            if not isinstance(found, dict):
                raise _Refused("no dict")
            if sum(8 * len(values) for values in found.values()) > MAX_GROWTH * len(data):
                raise _Refused(f"arrays of more than {MAX_GROWTH} times its size")
            return {key: _whole_numbers(values) for key, values in found.items()}
        except _Refused as error:
            text = f"it contains {error}, expected a dict of (src, dst, t) to arrays"
            raise StreamError(f"{path}, byte {data.tell()}", "syntax", text) from None
        except _DAMAGE as error:
            text = f"it is not a whole pickle: {type(error).__name__} {error!s:.100}"
            raise StreamError(f"{path}, byte {data.tell()}", "syntax", text) from None


def _whole_numbers(values: npt.NDArray[Any] | list[Any]) -> Int64s:
    """Return the values as int64."""
    if isinstance(values, list):
        if any(type(value) is not int for value in values):
            raise _Refused(_NOT_WHOLE)
        return np.array(values, dtype=np.int64)
    if (
        values.dtype.kind == "f"
        and not ((np.trunc(values) == values) & (np.abs(values) < 2.0**63)).all()
    ):
        raise _Refused(_NOT_WHOLE)
    if values.dtype.kind == "u" and (values >= 2**63).any():
        raise _Refused(_NOT_WHOLE)
    return values.astype(np.int64, copy=False)


class _Opcodes(dict[int, Callable[[Any], None]]):
    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise _Refused(f"the opcode {_NAMES[code]}")


# Python's unpickler, as the C one allocates any size that a memo index or a length requests.
class _ArrayUnpickler(pickle._Unpickler):
    stack: list[Any]
    read: Callable[[int], bytes]

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (full_name := f"{module} {name}") not in _CALLABLE:
            raise _Refused(f"the name {full_name!r:.80}")
        return _CALLABLE[full_name]

    def load_empty_dictionary(self) -> None:
        self.stack.append(_Found())

    def load_bytearray8(self) -> None:
        [size] = struct.unpack("<Q", self.read(8))
        self.stack.append(self.read(min(size, sys.maxsize)))  # pickle allocates `size` first

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _DType | _Values):
            raise _Refused("a state for an object without one")
        self.stack[-1].__setstate__(state)

    dispatch = _Opcodes(
        (code, pickle._Unpickler.dispatch[code])
        for code, name in _NAMES.items()
        if name in _OPCODES
    )
    dispatch |= {
        pickle.EMPTY_DICT[0]: load_empty_dictionary,
        pickle.BYTEARRAY8[0]: load_bytearray8,
        pickle.BUILD[0]: load_build,
    }
