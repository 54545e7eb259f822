"""Launches kernels by name on torch's current stream: compiled at first use, cached on disk."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from tgflow.cuda import driver, sources
from tgflow.cuda.requirements import CudaError, require_cupy

Argument: TypeAlias = "ctypes.Structure | ctypes._SimpleCData[Any]"
"""A kernel's argument, passed by value: a struct as in the headers, or a scalar of its size."""


class Kernels(Protocol):
    """Whatever runs the kernels of `sources.kernels()`."""

    def launch(self, name: str, blocks: int, threads: int, *arguments: Argument) -> None:
        """Run kernel `name` in `blocks` (at least 1) thread blocks of `threads`."""


class CudaKernels:
    """The kernels on one CUDA device.

    Raises:
        CudaError: If what they need is not there; the message says what to install.
    """

    def __init__(self, device: torch.device) -> None:
        self._cupy = require_cupy(device)
        self._index = device.index or 0
        self._context = driver.PrimaryContext(self._index)
        self._functions: dict[str, int] = {}
        self._loaded: list[dict[str, Any]] = []

    def launch(self, name: str, blocks: int, threads: int, *arguments: Argument) -> None:
        """Queue kernel `name` on torch's current stream of the device; does not synchronize.

        The first launch of a kernel compiles its source file, or loads it from CuPy's disk cache:
        all kernels of that file are ready then, and none of them is loaded within a capture.

        Raises:
            CudaError: If it cannot be compiled or launched, or an earlier kernel has failed.
        """
        function = self._functions.get(name) or self._compiled(name)
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        stream = torch.cuda.current_stream(self._index).cuda_stream
        status = self._context.launch(function, blocks, threads, stream, addresses)
        if status != 0:
            driver.check(status, f"launching {name} on cuda:{self._index}, or a kernel before it")

    def warm(self) -> dict[str, float]:
        """Compile all sources side by side, or load them; return the seconds of each by its name.

        Nothing is compiled later then. Call it before a capture, and before time counts.

        Raises:
            CudaError: As `launch`.
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
        with torch.cuda.device(self._index), self._context.current():
            loaded = _functions(self._cupy, source, self._index)
        self._loaded.append(loaded)
        self._functions |= {name: function.ptr for name, function in loaded.items()}
        return perf_counter() - start


@cache
def _functions(cupy: Any, source: Path, device_index: int) -> dict[str, Any]:
    """Return the compiled kernels of a source, which stay loaded as long as they are kept.

    Once for each device, for their architectures may differ.
    """
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
            f"please report it with what NVRTC says:\n{error}"
        ) from error
    except Exception as error:  # headers that are not found, a cache that cannot be written, ...
        raise CudaError(
            f"CuPy {cupy.__version__} cannot compile {source.name} for device {device_index}: "
            f"{error}; python -m tgflow.cuda.warm tries it alone"
        ) from error


def prefix_sum(table: Tensor) -> None:
    """Replace each row of `table`, int64 `[R, N]`, by its inclusive prefix sums.

    Row by row: torch scans one row with the whole device, and a table with a thread block a row.
    """
    for row in table:
        torch.cumsum(row, 0, out=row)
