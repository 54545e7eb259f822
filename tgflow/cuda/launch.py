"""Launches kernels by name on torch's current stream: compiled at first use, cached on disk."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from tgflow.cuda import sources
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
        self._device = torch.device("cuda", device.index or 0)
        self._functions: dict[str, Any] = {}

    def launch(self, name: str, blocks: int, threads: int, *arguments: Argument) -> None:
        """Queue kernel `name` on torch's current stream of the device; does not synchronize.

        The first launch of a kernel compiles its source file, or loads it from CuPy's disk cache.
        """
        function = self._functions.get(name) or self._compiled(name)
        current = ExternalStream(torch.cuda.current_stream(self._device).cuda_stream)
        with torch.cuda.device(self._device), self._cupy.cuda.Stream.from_external(current):
            function((blocks,), (threads,), tuple(map(_by_value, arguments)))

    def _compiled(self, name: str) -> Any:
        with torch.cuda.device(self._device):
            module = _module(self._cupy, sources.kernels()[name], self._device.index)
            self._functions[name] = module.get_function(name)
        return self._functions[name]


class ExternalStream:
    """A stream of torch's, as CuPy takes others' streams."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


@cache
def _module(cupy: Any, source: Path, device_index: int) -> Any:
    """Return the compiled source; one for each device, whose architectures may differ."""
    module = cupy.RawModule(code=source.read_text(), options=sources.options(), backend="nvrtc")
    try:
        module.compile()
    except cupy.cuda.compiler.CompileException as error:
        raise CudaError(
            f"CuPy {cupy.__version__} could not compile {source.name} for device {device_index}; "
            f"please report it with what NVRTC says:\n{error}"
        ) from error
    return module


def _by_value(argument: Argument) -> np.ndarray[Any, Any]:
    """Return the argument's bytes as CuPy takes them: it passes an array's contents."""
    return np.frombuffer(bytes(argument), dtype=np.dtype(type(argument)))
