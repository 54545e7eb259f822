"""`tgflow doctor`: check that the installation works, and suggest fixes."""

from __future__ import annotations

import importlib
import json as jsonlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import typer
from rich.text import Text

from tgflow.cli.errors import INTERNAL
from tgflow.cli.options import Json
from tgflow.report.table_text import print_table

COLORS = {"ok": "green", "warn": "yellow", "missing": "red"}


def doctor(json: Json = False) -> None:
    """Check this installation (versions, native core, threads, GPU) and suggest fixes.

    [bold]Examples[/bold]

      tgflow doctor
      tgflow doctor --json
    """
    checks = report()
    if json:
        sys.stdout.write(jsonlib.dumps([asdict(check) for check in checks], indent=2) + "\n")
    else:
        rows = [
            (
                check.name,
                Text(check.status, COLORS[check.status]),
                Text.assemble(check.detail, (f"\n{check.advice}" if check.advice else "", "dim")),
            )
            for check in checks
        ]
        print_table(("check", "state", "found"), rows, left=range(3))
    if any(check.status == "missing" for check in checks):
        raise typer.Exit(INTERNAL)


Status = Literal["ok", "warn", "missing"]

_GB = 10**9


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: `missing` stops something from working, `warn` makes it slower or smaller."""

    name: str
    status: Status
    detail: str
    """Result of the check."""
    advice: str = ""
    """How to fix it; empty if nothing."""


_Found = str | tuple[Status, str, str]
"""Detail of a check with status "ok"; or status, detail and advice."""


def report(folder: Path | None = None) -> list[Check]:
    """Return the checks of this machine, in reading order; never raises.

    Args:
        folder: Where runs will be written, the current folder by default; its disk is checked.
    """
    place = folder or Path.cwd()
    checks: dict[str, Callable[[], _Found]] = {
        "python": lambda: f"{platform.python_version()} at {sys.executable}",
        "tgflow": _native_core,
        "torch": partial(_package, "torch"),
        "pyarrow": partial(_package, "pyarrow"),
        "threads": _threads,
        "vectors": _vectors,
        "products": _products,
        "memory": _memory,
        "disk": partial(_disk, place),
        "row files": partial(_row_files, place),
        "compiler": _compiler,
        "CUDA device": _cuda_device,
        "CuPy": _cupy,
        "nvcc": _nvcc,
    }
    return [_check(name, find) for name, find in checks.items()]


def _check(name: str, find: Callable[[], _Found]) -> Check:
    try:
        found = find()
    except Exception as error:  # a report must not fail on what it reports
        detail = f"{type(error).__name__}: {error}"
        return Check(name, "missing", detail, "this check itself failed; please report it")
    return Check(name, "ok", found) if isinstance(found, str) else Check(name, *found)


def _native_core() -> _Found:
    import torch

    from tgflow.base import _native

    ids = _native.IntIdMap(bipartite=False)
    edge, out = torch.tensor([7, 7]), torch.empty(2, dtype=torch.int64)
    ids.encode((edge, None), (edge, None), out, out)
    if len(ids) != 1:
        return "missing", "the native core gives wrong answers", "reinstall tgflow"
    return f"{_version('tgflow-learn')}, native core at {_native.CORE_FILE}"


def _package(name: str) -> _Found:
    try:
        importlib.import_module(name)
    except ImportError as error:
        return "missing", str(error), f"pip install {name}"
    return _version(name)


def _threads() -> _Found:
    import torch

    from tgflow.base import _native
    from tgflow.run.machine import num_cores

    cores, threads = num_cores(), torch.get_num_threads()
    detail = f"{cores} cores; the core uses {_native.num_threads()}, torch {threads}"
    if threads > cores:
        advice = f"set OMP_NUM_THREADS={cores}: more threads than cores slow each other down"
        return "warn", detail, advice
    return detail


def _vectors() -> _Found:
    from tgflow.base import _native

    level = _native.simd_level()
    detail = f"the core's loops over floats use {level} instructions"
    if level == "baseline" and platform.machine() in ("x86_64", "AMD64"):
        advice = "training is slower without AVX2: take a machine that has it, or let a virtual one"
        return "warn", detail, f"{advice} pass it on"
    return detail


def _products() -> _Found:
    from tgflow.nn.linear import product_rates

    rates = product_rates()
    detail = f"matrix products at {rates['fp32']:.0f} GFLOP/s in float32"
    if "bf16" in rates:
        return f"{detail}, {rates['bf16']:.0f} with --precision bf16"
    return f"{detail}; no --precision bf16, which requires AVX512_BF16"


def _memory() -> _Found:
    path = Path("/proc/meminfo")
    found = re.search(r"MemAvailable: *(\d+)", path.read_text()) if path.exists() else None
    if found is None:  # not Linux
        return "available memory is unknown on this system"
    available = 1024 * int(found[1])
    detail = f"{available / _GB:.1f} GB available"
    if available < 2 * _GB:
        return "warn", detail, "close other programs, or use a smaller stream"
    return detail


def _disk(folder: Path) -> _Found:
    free = shutil.disk_usage(folder).free
    detail = f"{free / _GB:.1f} GB free at {folder}"
    return ("warn", detail, "free some space, or write runs elsewhere") if free < _GB else detail


def _row_files(folder: Path) -> _Found:
    from tgflow.base import _native

    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(bytes(range(256)) * 16)
        file.flush()
        way = _native.probe_reads(file.name)
    detail = f"tables on disk are read by {way} at {folder}"
    if "O_DIRECT" not in way:
        advice = "their rows take memory twice here: put them on another file system"
        return "warn", detail, advice
    return detail


def _compiler() -> _Found:
    found = _version_lines(os.environ.get("CXX", "c++"))
    if not found:
        advice = "only needed to build tgflow from source: install g++ or clang++, or set CXX"
        return "warn", "no C++ compiler", advice
    return found[0]


def _cuda_device() -> _Found:
    import torch

    from tgflow.cuda.requirements import driver_version

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"{', '.join(names)}; driver {driver_version()}, CUDA {torch.version.cuda}"
    detail = "this torch is a CPU build" if torch.version.cuda is None else "torch finds none"
    return "warn", detail, "all runs on the CPU"


def _cupy() -> _Found:
    import torch

    from tgflow.cuda.requirements import CudaError, require_cupy

    if not torch.cuda.is_available():
        return "not looked for: only of use with a CUDA device"
    try:
        return str(require_cupy(torch.device("cuda")).__version__)
    except CudaError as error:
        return "warn", str(error), "until then graphs are on the CPU"


def _nvcc() -> _Found:
    unneeded = "not found, and not needed: kernels are compiled at first use"
    return [unneeded, *_version_lines("nvcc")][-1]


def _version_lines(name: str) -> list[str]:
    """Return the lines of a program's version; empty without the program."""
    program = shutil.which(name)
    if program is None:
        return []
    run = [program, "--version"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.strip().splitlines() or [program]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed, only importable"
