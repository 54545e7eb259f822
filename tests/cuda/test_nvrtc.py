"""NVRTC, which has no standard library, compiles all kernels within limits of registers and stack.

Its results are cached until a source file changes. No GPU is needed.
"""

import ctypes
import hashlib
import io
import json
import os
import struct
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from helpers.emulator import CSRC, KERNELS
from tgflow.cuda import sources
from tgflow.cuda.sources import kernels_in

ROOT = Path(__file__).parents[2]


def nvrtc_library():
    """NVRTC from $TGFLOW_NVRTC, the package nvidia-cuda-nvrtc, or the CUDA toolkit."""
    if "TGFLOW_NVRTC" in os.environ:
        return os.environ["TGFLOW_NVRTC"]
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    folders = [*(Path(path) / "nvidia" for path in sys.path), toolkit / "lib64"]
    found = [str(path) for folder in folders for path in folder.glob("**/libnvrtc.so.*")]
    return found[0] if found else None


LIBRARY = nvrtc_library()


def load_nvrtc():
    assert LIBRARY is not None
    for builtins in Path(LIBRARY).parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))  # NVRTC opens it by name, and gets the loaded one
    return ctypes.CDLL(LIBRARY)


def options_of(source, arch):
    """Return the compile options of CuPy, which adds the last two itself."""
    asked = [option for option in sources.options(source) if not option.startswith("-I")]
    return [f"-arch={arch}", *asked, "-ftz=true", "--device-as-default-execution-space"]


def compile_with_nvrtc(source, arch):
    """Return NVRTC's status, 0 for success, its log, and the cubin."""
    nvrtc, program, size = load_nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    text, name = source.read_bytes(), source.name.encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None) == 0
    options = [f"-I{CSRC / 'include'}", *options_of(source, arch)]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), array)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode(), cubin.raw


def kernel_costs(cubin):
    """Return the registers and the bytes of stack of a thread of each kernel, from an ELF file."""
    elf = ELFFile(io.BytesIO(cubin))
    symbols, info = elf.get_section_by_name(".symtab"), elf.get_section_by_name(".nv.info").data()
    found = {}
    at = 0
    while at < len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        if form == _HAS_LENGTH and attribute in (_REGISTERS, _FRAME):
            number, value = struct.unpack_from("<2I", info, at + 4)
            found.setdefault(symbols.get_symbol(number).name, {})[attribute] = value
        at += 4 + (length if form == _HAS_LENGTH else 0)
    return {  # functions that are called have a frame alone
        name: (costs[_REGISTERS], costs.get(_FRAME, 0))
        for name, costs in found.items()
        if _REGISTERS in costs
    }


_HAS_LENGTH, _REGISTERS, _FRAME = 4, 0x2F, 0x11
"""Form and attributes of entries of `.nv.info`."""
MOST_REGISTERS = 64
"""Four thread blocks of 256 fit in a multiprocessor with 65,536 registers."""
MORE_REGISTERS = {
    "attend_by_1": 96,
    "attend_by_4": 112,
    "attend_backward_by_1": 96,
    "attend_backward_by_4": 112,
    "gather_by_1": 104,
    "gru_backward_by_4": 80,
    "sample_any": 80,
}
"""Kernels with fewer threads at once; these ceilings only fall."""
MOST_STACK = {
    "attend_below_by_4": 40,  # on sm_80
    "cache_copy_by_16": 8,
    "insert_small_commit": 16,
    "mail_mean_by_4": 16,
    "sample_any": 672,
    "sample_recent": 112,
    "sample_uniform": 160,
}
"""Bytes of stack; other kernels have none."""


def digest_of(source, arch):
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
    compiled = ROOT / "build" / "nvrtc" / f"{digest_of(source, arch)}.json"
    if not compiled.exists():
        status, log, cubin = compile_with_nvrtc(source, arch)
        assert status == 0, log
        assert "warning" not in log, log
        compiled.parent.mkdir(parents=True, exist_ok=True)
        compiled.write_text(json.dumps(kernel_costs(cubin)))
    costs = json.loads(compiled.read_text())
    assert set(costs) == set(kernels_in(source.read_text()))
    for name, (registers, stack) in costs.items():
        assert registers <= MORE_REGISTERS.get(name, MOST_REGISTERS), (name, registers)
        assert stack <= MOST_STACK.get(name, 0), (name, stack)
