"""Kernel sources in CUDA C++, shipped beside the compiled core."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

from tgflow import _core

FOLDER = Path(_core.__file__).parent / "kernels"
"""`cuda/*.cu`, and `include/`, headers shared with the CPU."""

FUSED = ("attend.cu", "gru.cu", "loss.cu")
"""Sources compiled with fused multiply-add: their float sums differ from the CPU's order."""

_KERNEL = r"__global__ void\s+(?:__launch_bounds__\(\w+\)\s+)?(\w+)\("
_KERNELS = r"^KERNELS_BY_(WIDTH|PART)\(\d+, (\w+),"
_WIDTHS = {"WIDTH": (4, 1), "PART": (16, 4, 1)}


@cache
def kernels() -> dict[str, Path]:
    """Return the source file of every kernel by its name."""
    paths = sorted((FOLDER / "cuda").glob("*.cu"))
    return {name: path for path in paths for name in kernels_in(path.read_text())}


def kernels_in(text: str) -> list[str]:
    """Return the names of the kernels in a source."""
    several = re.findall(_KERNELS, text, re.MULTILINE)
    names = [f"{name}_by_{width}" for kind, name in several for width in _WIDTHS[kind]]
    return re.findall(_KERNEL, text) + names


def digest() -> str:
    """Return a hash of all sources and headers; any change changes it."""
    total = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*.*")):
        total.update(f"{path.relative_to(FOLDER)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def options(source: Path) -> tuple[str, ...]:
    """Return the compiler options of a source.

    Most results must equal the CPU's to the last bit, so multiply-add is not fused; those of
    `FUSED` are close to the CPU's. CuPy's disk cache is keyed by the options and one source file;
    the hash among the options covers the headers.
    """
    fmad = f"--fmad={'true' if source.name in FUSED else 'false'}"
    return ("--std=c++17", fmad, f"-I{FOLDER / 'include'}", f"-DTGFLOW_SOURCES=0x{digest()}")
