"""Reads pickled dicts of arrays, as TGB publishes its negatives, without unpickling anything.

The opcodes of the file are interpreted one by one. The constructors of arrays, dtypes and scalars
that NumPy's pickles name are implemented here; anything else is refused by name, so that a hostile
file can only fail.
"""

from __future__ import annotations

import mmap
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from tgflow.streams.errors import StreamError

Key = tuple[int, int, int]
Array = npt.NDArray[np.generic]

MAX_GROWTH = 16
"""Bytes that a file's arrays may come to for each of its own, as one may stand in many places."""
_MARK = object()
_CORES = ("numpy.core", "numpy._core")
_GLOBALS = {
    **{f"{core}.multiarray _reconstruct": "reconstruct" for core in _CORES},
    **{f"{core}.multiarray scalar": "scalar" for core in _CORES},
    **{f"{core}.numeric _frombuffer": "frombuffer" for core in _CORES},
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
    "__builtin__ bytes": "bytes",
}
_CONSTANTS = ("NONE", "NEWTRUE", "NEWFALSE")
_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS = {"BINPUT", "LONG_BINPUT"}
_GETS = {"BINGET", "LONG_BINGET"}
_NOTHING = {"PROTO", "FRAME"}


class _Global(str):
    """The name of a constructor."""

    __slots__ = ()


class _DType:
    """A dtype: its code, and its byte order once it is built."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def of(self, data: bytes) -> Array:
        """Return `data` as an array of one dimension."""
        if self.code not in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"):
            raise _Refused(f"the dtype {self.code!r:.20}")
        return np.frombuffer(data, np.dtype(self.order + self.code))


class _Reconstructed:
    """An array, once it is built."""

    values: Array | None = None


class _Refused(Exception):
    """What a file may not hold."""


def read_pickled_arrays(path: Path) -> dict[Key, Array]:
    """Return the arrays of a pickled dict by their keys: three whole numbers each.

    Nothing is imported, called or executed that the file names.

    Args:
        path: A pickle of any protocol from 2 on: `{(src, dst, t): ndarray}`.

    Raises:
        StreamError: If it is not, or is damaged; the message says what was found, and where.
        OSError: If it cannot be read.
    """
    machine = _Machine(path.stat().st_size)
    place = 0
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for opcode, argument, position in pickletools.genops(cast(IO[bytes], data)):
                place = position or 0
                machine.step(opcode.name, argument)
    except _Refused as error:
        text = f"it holds {error}, where a dict of (src, dst, t) to arrays is expected"
        raise StreamError(f"{path}, byte {place}", "syntax", text) from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        text = f"it is no whole pickle: {type(error).__name__} {error!s:.100}"
        raise StreamError(f"{path}, byte {place}", "syntax", text) from None
    if not isinstance(machine.result, dict):
        raise StreamError(str(path), "syntax", "it holds no dict of (src, dst, t) to arrays")
    return machine.result


class _Machine:
    """A stack, and what is remembered; see `pickletools` for what each opcode means."""

    def __init__(self, num_bytes: int) -> None:
        self.result: Any = None
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._room = MAX_GROWTH * num_bytes
        self._steps: dict[str, Callable[[Any], None]] = {
            "MARK": lambda _: self._stack.append(_MARK),
            "EMPTY_DICT": lambda _: self._stack.append({}),
            "TUPLE": lambda _: self._tuple(self._since_mark()),
            "MEMOIZE": lambda _: self._put(len(self._memo)),
            "GLOBAL": self._global,
            "STACK_GLOBAL": lambda _: self._global(" ".join(self._top(2, str))),
            "REDUCE": lambda _: self._reduce(),
            "BUILD": lambda _: self._build(),
            "SETITEM": lambda _: self._set(self._top(2)),
            "SETITEMS": lambda _: self._set(self._since_mark()),
            "STOP": lambda _: self._stop(),
        }

    def step(self, name: str, argument: Any) -> None:
        """Do what one opcode says."""
        if name in _VALUES:
            self._stack.append(argument)
        elif name in _GETS:
            self._stack.append(self._memo[argument])
        elif name in _PUTS:
            self._put(argument)
        elif name in _TUPLES:
            self._tuple(self._top(_TUPLES[name]))
        elif name in _CONSTANTS:
            self._stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name in self._steps:
            self._steps[name](argument)
        elif name not in _NOTHING:
            raise _Refused(f"the opcode {name}")

    def _top(self, num: int, kind: type = object) -> list[Any]:
        """Take the last values from the stack."""
        taken = self._stack[len(self._stack) - num :] if num else []
        if len(taken) < num or any(each is _MARK or not isinstance(each, kind) for each in taken):
            raise _Refused("an opcode without its values")
        del self._stack[len(self._stack) - num :]
        return taken

    def _since_mark(self) -> list[Any]:
        size = len(self._stack)
        place = next((i for i in range(size - 1, -1, -1) if self._stack[i] is _MARK), -1)
        if place < 0:
            raise _Refused("an opcode without its mark")
        taken = self._stack[place + 1 :]
        del self._stack[place:]
        return taken

    def _put(self, place: int) -> None:
        [top] = self._top(1)
        self._stack.append(top)
        self._memo[place] = top

    def _tuple(self, items: list[Any]) -> None:
        inner = [item for item in items if isinstance(item, tuple)]
        if any(isinstance(each, tuple) for item in inner for each in item):
            raise _Refused("tuples three deep")
        self._stack.append(tuple(items))

    def _global(self, name: str) -> None:
        if name not in _GLOBALS:
            raise _Refused(f"the name {name!r:.80}")
        self._stack.append(_Global(_GLOBALS[name]))

    def _reduce(self) -> None:
        name, arguments = self._top(2)
        if not isinstance(name, _Global) or not isinstance(arguments, tuple):
            raise _Refused("a call of what is no constructor")
        match str(name), arguments:
            case "encode", (str() as text, "latin1"):
                made: Any = text.encode("latin1")
            case "bytes", ():
                made = b""
            case "dtype", (str() as code, False, bool()):
                made = _DType(code)
            case "reconstruct", ("ndarray", (0,), b"b"):
                made = _Reconstructed()
            case "scalar", (_DType() as dtype, bytes() as data):
                [made] = dtype.of(data).tolist()
            case "frombuffer", (bytes() | bytearray() as data, _DType() as dtype, (int(),), "C"):
                made = _Reconstructed()
                made.values = _shaped(dtype, bytes(data), arguments[2])
            case _:
                raise _Refused(f"a call of {name} with other arguments than NumPy's")
        self._stack.append(made)

    def _build(self) -> None:
        made, state = self._top(2)
        match made, state:
            case _DType(), (3, "<" | ">" | "|" | "=" as order, None, None, None, -1, -1, 0):
                made.order = order
            case _Reconstructed(), (
                1,
                (int(),) as shape,
                _DType() as dtype,
                False,
                bytes() as data,
            ):
                made.values = _shaped(dtype, data, shape)
            case _:
                raise _Refused("a state of other form than NumPy's")
        self._stack.append(made)

    def _set(self, items: list[Any]) -> None:
        [found] = self._top(1, dict)
        if len(items) % 2:
            raise _Refused("a key without its value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(value, _Reconstructed) or value.values is None:
                raise _Refused("a value that is no array")
            self._room -= value.values.nbytes
            if self._room < 0:
                raise _Refused(f"arrays of more than {MAX_GROWTH} times its size")
            found[_key(key)] = value.values
        self._stack.append(found)

    def _stop(self) -> None:
        [self.result] = self._top(1)


def _key(key: Any) -> Key:
    """Return a key as whole numbers; never hashes what a file has nested."""
    if not (isinstance(key, tuple) and len(key) == 3):
        raise _Refused("a key that is no (src, dst, t)")
    if any(type(part) not in (int, float) or part != int(part) for part in key):
        raise _Refused("a key of other than whole numbers")
    src, dst, t = map(int, key)
    return src, dst, t


def _shaped(dtype: _DType, data: bytes, shape: tuple[int]) -> Array:
    values = dtype.of(data)
    if shape != (len(values),) or values.dtype.kind not in "iu":
        raise _Refused("an array that is no list of whole numbers")
    return values
