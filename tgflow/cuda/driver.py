"""CUDA's driver library called through ctypes: a launch costs microseconds so."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_uint, c_void_p
from functools import cache
from typing import Any

from tgflow.cuda.requirements import CudaError

_NAME = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDriverGetVersion": [c_void_p],
    "cuDeviceGet": [c_void_p, c_int],
    "cuDevicePrimaryCtxRetain": [c_void_p, c_int],
    "cuCtxGetCurrent": [c_void_p],
    "cuCtxSetCurrent": [c_void_p],
    "cuLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p],
    "cuGetErrorName": [c_int, c_void_p],
    "cuGetErrorString": [c_int, c_void_p],
}


@cache
def library() -> Any:
    """Return the driver's library, loaded once.

    Calls into it let other threads run: a launch waits where too many are queued.

    Raises:
        CudaError: If there is none.
    """
    try:
        loaded = ctypes.CDLL(_NAME)
    except OSError as error:
        raise CudaError(f"the driver's library cannot be loaded: {error}") from error
    for name, arguments in _SIGNATURES.items():
        getattr(loaded, name).argtypes = arguments
    loaded.cuInit(0)
    return loaded


def check(status: int, doing: str) -> None:
    """Raise CudaError unless the driver's `status` is success; `doing` begins the message."""
    if status != 0:
        raise CudaError(f"{doing}: {describe(status)}")


def describe(status: int) -> str:
    """Return the driver's name for an error, and its sentence."""
    texts = []
    for look_up in (library().cuGetErrorName, library().cuGetErrorString):
        text = c_char_p()
        look_up(status, byref(text))
        texts.append((text.value or b"unknown").decode())
    return f"{texts[0]} ({status}), {texts[1]}"


def version() -> str:
    """Return the newest CUDA that the driver runs, such as "13.0"."""
    number = c_int()
    check(library().cuDriverGetVersion(byref(number)), "asking for the driver's version")
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


class PrimaryContext:
    """The context of a device that torch and CuPy share, and kernels are loaded into.

    A thread of its own has none yet, and one that works on another device has that one's.

    Args:
        index: Of the device, as torch counts.

    Raises:
        CudaError: If the driver does not give it.
    """

    def __init__(self, index: int) -> None:
        self._library = library()
        device, context = c_int(), c_void_p()
        opening = f"opening cuda:{index}"
        check(self._library.cuDeviceGet(byref(device), index), opening)
        check(self._library.cuDevicePrimaryCtxRetain(byref(context), device), opening)
        self._context = context

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it this thread's context within, and what was before afterwards."""
        before = c_void_p()
        check(self._library.cuCtxGetCurrent(byref(before)), "asking for the context")
        if before.value == self._context.value:
            yield
            return
        check(self._library.cuCtxSetCurrent(self._context), "entering a device's context")
        try:
            yield
        finally:
            self._library.cuCtxSetCurrent(before)

    def launch(self, function: int, blocks: int, threads: int, stream: int, addresses: Any) -> int:
        """Queue a kernel on `stream`, and return the driver's status.

        Args:
            function: As the driver knows it.
            blocks: Thread blocks.
            threads: Of each block.
            stream: Of this device.
            addresses: Array of the arguments' addresses; they are copied before this returns.
        """
        before = c_void_p()
        self._library.cuCtxGetCurrent(byref(before))
        if before.value == self._context.value:
            status: int = self._library.cuLaunchKernel(
                function, blocks, 1, 1, threads, 1, 1, 0, stream, addresses, None
            )
            return status
        with self.current():
            return self.launch(function, blocks, threads, stream, addresses)
