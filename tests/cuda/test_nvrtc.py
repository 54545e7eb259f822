"""Kernels and their headers compile without the standard library, and by NVRTC if available.

NVRTC results are cached until a source file changes. No GPU is needed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.emulator import CSRC, HERE, KERNELS
from tgflow.cuda import sources

ROOT = Path(__file__).parents[2]


def nvrtc_library() -> str | None:
    """NVRTC from $TGFLOW_NVRTC, the package nvidia-cuda-nvrtc, or the CUDA toolkit."""
    if "TGFLOW_NVRTC" in os.environ:
        return os.environ["TGFLOW_NVRTC"]
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    folders = [*(Path(path) / "nvidia" for path in sys.path), toolkit / "lib64"]
    found = [str(path) for folder in folders for path in folder.glob("**/libnvrtc.so.*")]
    return found[0] if found else None


LIBRARY = nvrtc_library()


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.name)
def test_kernels_include_no_standard_header(source):
    command = ["g++", "-std=c++17", "-fsyntax-only", "-nostdinc", "-x", "c++"]
    command += ["-include", HERE / "no_std.hpp", "-I", CSRC / "include", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def load_nvrtc() -> ctypes.CDLL:
    assert LIBRARY is not None
    for builtins in Path(LIBRARY).parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))  # NVRTC opens it by name, and gets the loaded one
    return ctypes.CDLL(LIBRARY)


def options_of(source: Path, arch: str) -> list[str]:
    """Return the compile options of CuPy, which adds the last two itself."""
    asked = [option for option in sources.options(source) if not option.startswith("-I")]
    return [f"-arch={arch}", *asked, "-ftz=true", "--device-as-default-execution-space"]


def compile_with_nvrtc(source: Path, arch: str) -> tuple[int, str]:
    """Return NVRTC's status, 0 for success, and its log."""
    nvrtc, program, size = load_nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    text, name = source.read_bytes(), source.name.encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None) == 0
    options = [f"-I{CSRC / 'include'}", *options_of(source, arch)]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), array)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode()


def digest_of(source: Path, arch: str) -> str:
    """Return a hash of all compilation inputs: compiler, options, source and headers."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    load_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    compiler = (major.value, minor.value, LIBRARY, Path(str(LIBRARY)).stat().st_size)
    total = hashlib.sha256(repr((compiler, options_of(source, arch), source.name)).encode())
    for path in (source, *sorted((CSRC / "include").rglob("*.hpp"))):
        total.update(f"\0{path.relative_to(CSRC)}\0".encode() + path.read_bytes())
    return total.hexdigest()[:16]


@pytest.mark.skipif(LIBRARY is None, reason="finds no NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.name)
@pytest.mark.parametrize("arch", ["sm_90", pytest.param("sm_80", marks=pytest.mark.slow)])
def test_kernels_compile_at_run_time(source, arch):
    compiled = ROOT / "build" / "nvrtc" / digest_of(source, arch)
    if compiled.exists():
        return
    status, log = compile_with_nvrtc(source, arch)
    assert status == 0, log
    assert "warning" not in log, log
    compiled.parent.mkdir(parents=True, exist_ok=True)
    compiled.touch()
