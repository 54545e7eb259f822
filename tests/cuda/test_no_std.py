"""NVRTC knows no standard library: kernels and their headers must compile without one.

nvcc brings it along, so it passes what NVRTC refuses; where NVRTC is there, see test_nvrtc.py.
"""

import shutil
import subprocess

import pytest

from helpers.emulator import CSRC, HERE, KERNELS


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.name)
def test_kernels_include_no_standard_header(source):
    command = ["g++", "-std=c++17", "-fsyntax-only", "-nostdinc", "-x", "c++"]
    command += ["-include", HERE / "no_std.hpp", "-I", CSRC / "include", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
