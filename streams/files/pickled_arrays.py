"""Unpickler of dicts of integer arrays, the form in which TGB publishes its negatives.

Only NumPy's array constructors are called, and only with the arguments that NumPy writes. A hostile
file is refused; nothing that it names is imported.
"""

from __future__ import annotations

import mmap
import pickle
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tgflow.streams.errors import StreamError

Key = tuple[int, int, int]
Array = npt.NDArray[np.generic]

MAX_GROWTH = 16
"""Maximum bytes of arrays per byte of the file; one array may be the value of many keys."""
_CORES = ("numpy.core", "numpy._core")
_CONSTRUCTORS = {
    **{f"{core}.multiarray _reconstruct": "reconstruct" for core in _CORES},
    **{f"{core}.multiarray scalar": "scalar" for core in _CORES},
    **{f"{core}.numeric _frombuffer": "frombuffer" for core in _CORES},
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
    "__builtin__ bytes": "bytes",
}
_OPCODES = {
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE", "EMPTY_DICT", "SETITEM", "SETITEMS"),
    *("BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
}
_DTYPES = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
_DAMAGE = (
    *(ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError),
    *(EOFError, struct.error, pickle.UnpicklingError),
)


class _Constructor(str):
    __slots__ = ()


class _Refused(Exception):
    pass


def read_pickled_arrays(path: Path) -> dict[Key, Array]:
    """Return the arrays of a pickled dict by their keys, three integers each."""
    if not path.stat().st_size:  # an empty file cannot be mapped
        raise StreamError(f"{path}, byte 0", "syntax", "it is no whole pickle: the file is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            found = _ArrayUnpickler(data).load()
        except _Refused as error:
            text = f"it holds {error}, where a dict of (src, dst, t) to arrays is expected"
            raise StreamError(f"{path}, byte {data.tell()}", "syntax", text) from None
        except _DAMAGE as error:
            text = f"it is no whole pickle: {type(error).__name__} {error!s:.100}"
            raise StreamError(f"{path}, byte {data.tell()}", "syntax", text) from None
    if not isinstance(found, dict):
        raise StreamError(str(path), "syntax", "it holds no dict of (src, dst, t) to arrays")
    return found


# The unpickler in Python, not the one in C: its opcodes can be replaced. The one in C hashes a key
# before it can be checked (a tuple nested deep enough overflows the C stack) and allocates what a
# memo index or a length asks for.
class _ArrayUnpickler(pickle._Unpickler):
    """Unpickler restricted to `_OPCODES` and `_CONSTRUCTORS`."""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, data: mmap.mmap) -> None:
        super().__init__(data)
        self._data = data

    def load(self) -> Any:
        found = super().load()
        if not isinstance(found, dict):
            return found
        # Only now: the state of an array may also be set after the array became a value.
        if sum(value.nbytes for value in found.values()) > MAX_GROWTH * len(self._data):
            raise _Refused(f"arrays of more than {MAX_GROWTH} times its size")
        return found

    def find_class(self, module: str, name: str) -> _Constructor:
        full_name = f"{module} {name}"
        if full_name not in _CONSTRUCTORS:
            raise _Refused(f"the name {full_name!r:.80}")
        return _Constructor(_CONSTRUCTORS[full_name])

    def load_frame(self) -> None:
        self._data.read(8)  # the frame's length; a frame is not copied, so that tell() is exact

    def load_bytearray8(self) -> None:
        [size] = struct.unpack("<Q", self._data.read(8))
        self.stack.append(self._data.read(min(size, len(self._data))))

    def load_reduce(self) -> None:
        arguments, constructor = self.stack.pop(), self.stack.pop()
        if not isinstance(constructor, _Constructor):
            raise _Refused("a call of what is no constructor")
        match str(constructor), arguments:
            case "encode", (str() as text, "latin1"):
                made: Any = text.encode("latin1")
            case "bytes", ():
                made = b""
            case "dtype", (str() as code, False, bool()):
                if code not in _DTYPES:
                    raise _Refused(f"the dtype {code!r:.20}")
                made = np.dtype(code, False, True)  # a copy, as load_build sets its byte order
            case "reconstruct", ("ndarray", (0,), b"b"):
                made = np.empty(0, dtype=np.int8)
            case "scalar", (np.dtype() as dtype, bytes() as data):
                [made] = np.frombuffer(data, dtype).tolist()
            case "frombuffer", (bytes() as data, np.dtype() as dtype, (int() as size,), "C"):
                made = np.frombuffer(data, dtype)
                _check_array(made, size)
            case _:
                raise _Refused(f"a call of {constructor} with other arguments than NumPy's")
        self.stack.append(made)

    def load_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        match made, state:
            case (np.dtype(), (3, "<" | ">" | "=", None, None, None, -1, -1, 0)) | (
                np.dtype(itemsize=1),
                (3, "|", None, None, None, -1, -1, 0),
            ):
                pass
            case np.ndarray(), (1, (int() as size,), np.dtype() as dtype, False, bytes() as data):
                _check_array(np.frombuffer(data, dtype), size)
            case _:
                raise _Refused("a state of other form than NumPy's")
        made.__setstate__(state)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def load_setitems(self) -> None:
        self._set(self.pop_mark())

    def _set(self, items: list[Any]) -> None:
        found = self.stack[-1]
        if not isinstance(found, dict) or len(items) % 2:
            raise _Refused("a key without its value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(value, np.ndarray):
                raise _Refused("a value that is no array")
            found[_checked_key(key)] = value


def _method(name: str, code: int) -> Callable[[Any], None]:
    """Return the method of an opcode: this class's, else pickle's, else a refusal."""
    if name in _OPCODES:
        inherited = pickle._Unpickler.dispatch[code]
        found: Callable[[Any], None] = getattr(_ArrayUnpickler, inherited.__name__, inherited)
        return found

    def refuse(_: Any) -> None:
        raise _Refused(f"the opcode {name}")

    return refuse


_ArrayUnpickler.dispatch = {
    ord(each.code): _method(each.name, ord(each.code)) for each in pickletools.opcodes
}


def _checked_key(key: Any) -> Key:
    """Return a key as integers; must not hash it before, as it may be nested at any depth."""
    if not (isinstance(key, tuple) and len(key) == 3):
        raise _Refused("a key that is no (src, dst, t)")
    if any(type(part) not in (int, float) or part != int(part) for part in key):
        raise _Refused("a key of other than whole numbers")
    src, dst, t = map(int, key)
    return src, dst, t


def _check_array(values: Array, size: int) -> None:
    if size != len(values) or values.dtype.kind not in "iu":
        raise _Refused("an array that is no list of whole numbers")
