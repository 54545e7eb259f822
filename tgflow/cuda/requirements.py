"""Checks the requirements of a GPU, in the order in which a user would fix them."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tgflow.base.extras import install_command

_DRIVER = Path("/proc/driver/nvidia/version")


class CudaError(RuntimeError):
    """Raised when the GPU cannot be used; the message contains the cause and the fix."""


def require_device(device: torch.device) -> torch.device:
    """Return `device` with its index, or raise CudaError if torch cannot use it."""
    if sys.platform == "darwin":
        raise CudaError('CUDA needs Linux, and this is macOS; use device="cpu"')
    if torch.version.cuda is None:
        raise CudaError(
            f"torch {torch.__version__} is built without CUDA; install one that is, "
            'see the installation page of PyTorch, or use device="cpu"'
        )
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        found = torch.cuda.device_count()
        index = torch.cuda.current_device() if device.index is None else device.index
    except (RuntimeError, AssertionError) as error:
        raise CudaError(
            f"torch {torch.__version__} finds no CUDA device: {_first_line(error)}; "
            "check nvidia-smi, and whether CUDA_VISIBLE_DEVICES hides it, "
            'or use device="cpu"'
        ) from error
    if index >= found:
        raise CudaError(f"there is no device cuda:{index}: torch finds {found}, numbered from 0")
    return torch.device("cuda", index)


def driver_version() -> str:
    """Return the version of NVIDIA's driver; "unknown" where it cannot be read."""
    try:
        words = _DRIVER.read_text(encoding="utf-8").split()
    except OSError:
        return "unknown"
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def require_cupy(device: torch.device) -> Any:
    """Return CuPy, or raise CudaError if it does not match torch's CUDA and the driver."""
    require_device(device)
    try:
        cupy = importlib.import_module("cupy")
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise CudaError(f"CuPy cannot be loaded: {error}; {install_command('cuda')}") from error
        text = f"CuPy is not installed, and compiles the kernels: {install_command('cuda')}"
        raise CudaError(text) from error
    except Exception as error:  # a broken CuPy raises various errors
        text = f"CuPy cannot be loaded: {_first_line(error)}; {install_command('cuda')}"
        raise CudaError(text) from error
    _check_versions(cupy)
    return cupy


def _check_versions(cupy: Any) -> None:
    built = cupy.cuda.runtime.runtimeGetVersion() // 1000
    wanted = int(str(torch.version.cuda).split(".")[0])
    if built != wanted:
        raise CudaError(
            f"CuPy {cupy.__version__} is for CUDA {built}, "
            f"torch {torch.__version__} for CUDA {wanted}: "
            f"pip uninstall cupy-cuda{built}x, then pip install cupy-cuda{wanted}x"
        )
    driver = cupy.cuda.runtime.driverGetVersion()
    if driver // 1000 < built:
        raise CudaError(
            f"the driver is for CUDA {driver // 1000}.{driver % 1000 // 10}, "
            f"CuPy {cupy.__version__} needs CUDA {built}: update the driver"
        )
    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception as error:  # the library is loaded at its first use
        raise CudaError(
            f"CuPy {cupy.__version__} finds no NVRTC, CUDA's compiler: {_first_line(error)}; "
            f"pip install nvidia-cuda-nvrtc for CUDA {built}"
        ) from error
    if not _has_headers(cupy):
        raise CudaError(
            f"CuPy {cupy.__version__} finds no CUDA headers, and compiles with them: "
            f"pip install nvidia-cuda-runtime for CUDA {built}, or set CUDA_PATH to a toolkit"
        )


@cache
def _has_headers(cupy: Any) -> bool:
    """Return whether CuPy's own search finds the CUDA headers."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
    except ImportError:  # before version 14 CuPy bundled them
        return True
    try:
        return pathfinder.find_nvidia_header_directory("cudart") is not None
    except Exception:  # the search may start processes
        return cupy.cuda.get_cuda_path() is not None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
