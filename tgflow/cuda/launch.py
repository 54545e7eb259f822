"""Compiles kernels at first use, cached on disk, and launches them on torch's current stream."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_uint, c_void_p
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import torch

from tgflow.cuda import sources
from tgflow.cuda.requirements import CudaError, require_cupy

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
    """Return the driver library, loaded once.

    Calls into it release the GIL: a launch waits when too many are queued.
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
    if status == 0:
        return
    name, sentence = c_char_p(), c_char_p()
    library().cuGetErrorName(status, byref(name))
    library().cuGetErrorString(status, byref(sentence))
    texts = [(text.value or b"unknown").decode() for text in (name, sentence)]
    raise CudaError(f"{doing}: {texts[0]} ({status}), {texts[1]}")


def driver_cuda() -> str:
    """Return the newest CUDA version that the driver supports, such as "13.0"."""
    number = c_int()
    check(library().cuDriverGetVersion(byref(number)), "asking for the driver's version")
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


Argument: TypeAlias = "ctypes.Structure | ctypes._SimpleCData[Any]"
"""A kernel's argument, passed by value: a struct as in the headers, or a scalar."""


class Kernels:
    """The kernels of one CUDA device; CudaError, with what to install, without a requirement."""

    def __init__(self, device: torch.device) -> None:
        self._cupy = require_cupy(device)
        self._index = device.index or 0
        self._library = library()
        ordinal, self._context = c_int(), c_void_p()
        opening = f"opening cuda:{self._index}"
        check(self._library.cuDeviceGet(byref(ordinal), self._index), opening)
        check(self._library.cuDevicePrimaryCtxRetain(byref(self._context), ordinal), opening)
        self._functions: dict[str, int] = {}
        self._loaded: list[dict[str, Any]] = []

    def launch(self, name: str, blocks: int, threads: int, *arguments: Argument) -> None:
        """Queue kernel `name` on torch's current stream of the device; does not synchronize.

        The first launch of a kernel compiles its source file, or loads it from CuPy's disk cache:
        all kernels of that file are ready then, so none is loaded during a capture. A CudaError may
        be of an earlier kernel.
        """
        function = self._functions.get(name) or self._compiled(name)
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        stream = torch.cuda.current_stream(self._index).cuda_stream
        launched = (function, blocks, 1, 1, threads, 1, 1, 0, stream, addresses, None)
        current = c_void_p()
        self._library.cuCtxGetCurrent(byref(current))
        if current.value == self._context.value:
            status = self._library.cuLaunchKernel(*launched)
        else:
            with self._in_context():
                status = self._library.cuLaunchKernel(*launched)
        if status != 0:
            check(status, f"launching {name} on cuda:{self._index}, or a kernel before it")

    @contextmanager
    def _in_context(self) -> Iterator[None]:
        """Make the device's context, shared by torch and CuPy, current for this thread."""
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

    def warm(self) -> dict[str, float]:
        """Compile or load all sources in parallel; return the seconds of each by its name.

        Nothing is compiled after that. Call it before a capture or a measurement.
        """
        paths = sorted(set(sources.kernels().values()))
        with ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1)) as pool:
            seconds = list(pool.map(self._load, paths))
        return {path.name: spent for path, spent in zip(paths, seconds, strict=True)}

    def _compiled(self, name: str) -> int:
        self._load(sources.kernels()[name])
        return self._functions[name]

    def _load(self, source: Path) -> float:
        start = perf_counter()
        with torch.cuda.device(self._index), self._in_context():
            loaded = _functions(self._cupy, source, self._index)
        self._loaded.append(loaded)
        self._functions |= {name: function.ptr for name, function in loaded.items()}
        return perf_counter() - start


@cache
def _functions(cupy: Any, source: Path, device_index: int) -> dict[str, Any]:
    """Return the compiled kernels of a source, which stay loaded while referenced."""
    module = cupy.RawModule(
        code=source.read_text(), options=sources.options(source), backend="nvrtc"
    )
    names = [name for name, path in sources.kernels().items() if path == source]
    try:
        loaded = module.module
        return {name: loaded.get_function(name) for name in names}
    except cupy.cuda.compiler.CompileException as error:
        raise CudaError(
            f"CuPy {cupy.__version__} could not compile {source.name} for device {device_index}; "
            f"please report it with NVRTC's output:\n{error}"
        ) from error
    except Exception as error:  # missing headers, a read-only cache, ...
        raise CudaError(
            f"CuPy {cupy.__version__} cannot compile {source.name} for device {device_index}: "
            f"{error}; run python -m tgflow.cuda.warm to test it alone"
        ) from error
