"""Looks at the machine and says what tgflow finds on it, what is missing, and what to do."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch

Status = Literal["ok", "warn", "missing"]

_GB = 10**9


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: `missing` stops something from working, `warn` makes it slower or smaller."""

    name: str
    status: Status
    detail: str
    """What was found."""
    advice: str = ""
    """What to do about it; empty if nothing."""


def report(folder: Path | None = None) -> list[Check]:
    """Return what this machine has, in the order a reader needs it; never raises.

    Args:
        folder: Where runs will be written, the current folder by default; its disk is looked at.
    """
    place = folder or Path.cwd()
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", _python),
        ("tgflow", _native_core),
        ("torch", lambda: _package("torch")),
        ("pyarrow", lambda: _package("pyarrow")),
        ("threads", _threads),
        ("vectors", _vectors),
        ("memory", _memory),
        ("disk", lambda: _disk(place)),
        ("row files", lambda: _row_files(place)),
        ("compiler", _compiler),
        ("CUDA device", _cuda_device),
        ("CuPy", lambda: _cupy(torch.cuda.is_available())),
        ("nvcc", _nvcc),
    ]
    return [_guarded(name, check) for name, check in checks]


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # a report must not fail on the very trouble it is to name
        detail = f"{type(error).__name__}: {error}"
        return Check(name, "missing", detail, "this check itself failed; please report it")


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _native_core() -> Check:
    from tgflow import _native

    ids = _native.IntIdMap(bipartite=False)
    edge, out = torch.tensor([7, 7]), torch.empty(2, dtype=torch.int64)
    ids.encode((edge, None), (edge, None), out, out)
    if len(ids) != 1:
        return Check("tgflow", "missing", "the native core gives wrong answers", "reinstall tgflow")
    return Check("tgflow", "ok", f"{_version('tgflow-learn')}, native core at {_native.CORE_FILE}")


def _package(name: str) -> Check:
    try:
        importlib.import_module(name)
    except ImportError as error:
        return Check(name, "missing", str(error), f"pip install {name}")
    return Check(name, "ok", _version(name))


def _threads() -> Check:
    from tgflow import _native

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    detail = (
        f"{cores} cores; the core uses {_native.num_threads()}, torch {torch.get_num_threads()}"
    )
    if torch.get_num_threads() > (cores or 1):
        advice = f"set OMP_NUM_THREADS={cores}: more threads than cores slow each other down"
        return Check("threads", "warn", detail, advice)
    return Check("threads", "ok", detail)


def _vectors() -> Check:
    from tgflow import _native

    level = _native.simd_level()
    detail = f"the core's loops over floats use {level} instructions"
    if level == "baseline" and platform.machine() in ("x86_64", "AMD64"):
        advice = "training is slower without AVX2: take a machine that has it, or let a virtual one"
        return Check("vectors", "warn", detail, f"{advice} pass it on")
    return Check("vectors", "ok", detail)


def _memory() -> Check:
    available = _meminfo().get("MemAvailable")
    if available is None:  # not Linux
        return Check("memory", "ok", "this system does not say how much is available")
    detail = f"{available / _GB:.1f} GB available"
    if available < 2 * _GB:
        return Check("memory", "warn", detail, "close other programs, or use a smaller stream")
    return Check("memory", "ok", detail)


def _meminfo() -> dict[str, int]:
    path = Path("/proc/meminfo")
    if not path.exists():
        return {}
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[2:] == ["kB"]}


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    detail = f"{free / _GB:.1f} GB free at {folder}"
    if free < _GB:
        return Check("disk", "warn", detail, "free some space, or write runs elsewhere")
    return Check("disk", "ok", detail)


def _row_files(folder: Path) -> Check:
    from tgflow import _native

    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(bytes(range(256)) * 16)
        file.flush()
        way = _native.probe_reads(file.name)
    detail = f"tables on disk are read by {way} at {folder}"
    if "O_DIRECT" not in way:
        advice = "their rows take memory twice here: put them on another file system"
        return Check("row files", "warn", detail, advice)
    return Check("row files", "ok", detail)


def _compiler() -> Check:
    found = shutil.which(os.environ.get("CXX", "c++"))
    if found is None:
        advice = "only needed to build tgflow from source: install g++ or clang++, or set CXX"
        return Check("compiler", "warn", "no C++ compiler", advice)
    return Check("compiler", "ok", _version_lines(found)[0])


def _cuda_device() -> Check:
    from tgflow.cuda.requirements import driver_version

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        versions = f"driver {driver_version()}, CUDA {torch.version.cuda}"
        return Check("CUDA device", "ok", f"{', '.join(names)}; {versions}")
    if torch.version.cuda is None:
        return Check("CUDA device", "warn", "this torch is a CPU build", "all runs on the CPU")
    return Check("CUDA device", "warn", "torch finds none", "all runs on the CPU")


def _cupy(has_device: bool) -> Check:
    from tgflow.cuda.requirements import CudaError, require_cupy

    if not has_device:
        return Check("CuPy", "ok", "not looked for: only of use with a CUDA device")
    try:
        cupy = require_cupy(torch.device("cuda"))
    except CudaError as error:
        return Check("CuPy", "warn", str(error), "until then graphs are on the CPU")
    return Check("CuPy", "ok", str(cupy.__version__))


def _nvcc() -> Check:
    found = shutil.which("nvcc")
    if found is None:
        return Check("nvcc", "ok", "not found, and not needed: kernels are compiled at first use")
    return Check("nvcc", "ok", _version_lines(found)[-1])


def _version_lines(program: str) -> list[str]:
    run = [program, "--version"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.strip().splitlines() or [program]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed, only importable"
