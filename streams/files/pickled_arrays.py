"""Unpickler for dicts of arrays of whole numbers, the format of TGB's negatives."""

from __future__ import annotations

import mmap
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tgflow.streams.errors import StreamError

Key = tuple[int, int, int]
Int64s = npt.NDArray[np.int64]

MAX_GROWTH = 16
"""Maximum result bytes per byte of the file; one array may be the value of many keys."""
_DTYPES = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "O8")
_NOT_WHOLE = "an array that is not a list of whole numbers"


class _Refused(Exception):
    pass


class _DType:
    """Replaces a dtype, whose own `__setstate__` trusts the file."""

    def __init__(self, code: str, *_: bool) -> None:
        if code not in _DTYPES:  # shown if it is text: that of nested tuples may have no end
            raise _Refused(f"the dtype {code!r:.20}" if isinstance(code, str) else "a dtype")
        self.found = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.found = self.found.newbyteorder(state[1])


class _Values:
    """Replaces an array, whose own `__setstate__` trusts the file."""

    def __init__(self, *_: Any) -> None:
        self.found: npt.NDArray[Any] | list[Any] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, _, data = state
        is_list = dtype.found.kind == "O" and isinstance(data, list)
        self.found = data if is_list else np.frombuffer(data, dtype.found)
        if shape != (len(self.found),):
            raise _Refused(_NOT_WHOLE)

    def int64s(self) -> Int64s:
        """Return the values as int64."""
        x = self.found
        if isinstance(x, list):
            is_whole = all(type(value) is int for value in x)
        elif x.dtype.kind == "f":
            is_whole = bool(((np.trunc(x) == x) & (np.abs(x) < 2.0**63)).all())
        else:
            is_whole = x.dtype.kind == "i" or bool((x < 2**63).all())
        if not is_whole:
            raise _Refused(_NOT_WHOLE)
        return np.asarray(x, dtype=np.int64)


def _of_buffer(data: bytes, dtype: _DType, shape: tuple[int], _: str) -> _Values:
    values = _Values()
    values.__setstate__((1, shape, dtype, False, data))
    return values


_CALLABLE: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray _reconstruct": _Values,
    "numpy.core.multiarray scalar": lambda of, data: np.frombuffer(data, of.found, 1).item(),
    "numpy.core.numeric _frombuffer": _of_buffer,
    "numpy ndarray": _Values,
    "numpy dtype": _DType,
    "__builtin__ bytes": lambda: b"",
}


class _Found(dict[Key, _Values]):
    """A dict that checks keys before hashing; a deeply nested tuple would overflow the stack."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(value, _Values):
            raise _Refused("a value that is not an array")
        if not (isinstance(key, tuple) and len(key) == 3):
            raise _Refused("a key that is not (src, dst, t)")
        if any(type(part) not in (int, float) or part != int(part) for part in key):
            raise _Refused("a key of other than whole numbers")
        src, dst, t = map(int, key)
        super().__setitem__((src, dst, t), value)


# Python's unpickler, as the C one allocates any size that a memo index or a length requests.
class _ArrayUnpickler(pickle._Unpickler):
    stack: list[Any]
    read: Callable[[int], bytes]
    num_encoded = 0

    def __init__(self, data: mmap.mmap) -> None:
        super().__init__(data)
        self.num_bytes = len(data)

    def encode(self, text: str, _: str) -> bytes:
        """Return the bytes of a text; one text may be encoded again and again."""
        self.num_encoded += len(text)
        if self.num_encoded > self.num_bytes:
            raise _Refused("bytes of more than its size")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        full_name = f"{module} {name}"
        if full_name == "_codecs encode":
            return self.encode
        try:
            return _CALLABLE[full_name.replace("numpy._core.", "numpy.core.")]
        except KeyError:
            raise _Refused(f"the name {full_name!r:.80}") from None

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

    def load_hashed(self) -> None:
        raise _Refused("a set, or an old dict")  # their keys would be hashed unchecked

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.EMPTY_DICT[0]: load_empty_dictionary,
        pickle.BYTEARRAY8[0]: load_bytearray8,
        pickle.BUILD[0]: load_build,
        **dict.fromkeys((*pickle.DICT, *pickle.EMPTY_SET, *pickle.FROZENSET), load_hashed),
    }


def read_pickled_arrays(path: Path) -> dict[Key, Int64s]:
    """Read a pickled dict of arrays as int64; each key is three integers.

    The arrays are of integers, of floats that are whole numbers, as TGB's generator writes where
    a source has no history, or of Python's integers as objects. Nothing named in the file is
    imported or called.
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
            if sum(8 * len(each.found) for each in found.values()) > MAX_GROWTH * len(data):
                raise _Refused(f"arrays of more than {MAX_GROWTH} times its size")
            return {key: values.int64s() for key, values in found.items()}
        except _Refused as error:
            text = f"it contains {error}, expected a dict of (src, dst, t) to arrays"
        except Exception as error:  # of the unpickler, and of NumPy, on bytes of any kind
            text = f"it is not a whole pickle: {type(error).__name__} {error!s:.100}"
        raise StreamError(f"{path}, byte {data.tell()}", "syntax", text)
