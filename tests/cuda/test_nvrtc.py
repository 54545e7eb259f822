"""Every kernel through NVRTC, CUDA's compiler at run time: needs its library, and no GPU."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

from tgflow.cuda import sources

CSRC = Path(__file__).parents[2] / "csrc"


def nvrtc_library() -> str | None:
    """The one that $TGFLOW_NVRTC names, of the package nvidia-cuda-nvrtc, or of the toolkit."""
    if "TGFLOW_NVRTC" in os.environ:
        return os.environ["TGFLOW_NVRTC"]
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    folders = [*(Path(path) / "nvidia" for path in sys.path), toolkit / "lib64"]
    found = [str(path) for folder in folders for path in folder.glob("**/libnvrtc.so.*")]
    return found[0] if found else None


LIBRARY = nvrtc_library()
pytestmark = pytest.mark.skipif(
    LIBRARY is None, reason="finds no NVRTC: pip install nvidia-cuda-nvrtc"
)


def compile_with_nvrtc(source: Path, arch: str) -> tuple[int, str]:
    """Return NVRTC's status, 0 for success, and what it said."""
    assert LIBRARY is not None
    for builtins in Path(LIBRARY).parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))  # NVRTC asks for it by name, and finds what is loaded
    nvrtc = ctypes.CDLL(LIBRARY)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text, name = source.read_bytes(), source.name.encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None) == 0
    options = [f"-I{CSRC / 'include'}", f"-arch={arch}", "-ftz=true"]
    options += [option for option in sources.options(source) if not option.startswith("-I")]
    options += ["--device-as-default-execution-space"]  # CuPy adds this one and -ftz
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), array)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode()


@pytest.mark.parametrize("source", sorted((CSRC / "cuda").glob("*.cu")), ids=lambda p: p.name)
@pytest.mark.parametrize("arch", ["sm_90", pytest.param("sm_80", marks=pytest.mark.slow)])
def test_kernels_compile_at_run_time(source, arch):
    status, log = compile_with_nvrtc(source, arch)
    assert status == 0, log
    assert "warning" not in log, log
