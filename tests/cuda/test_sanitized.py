"""Every kernel under the sanitizer of undefined behavior, late, interleaved, in filled memory."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers.devices import needs_apart
from helpers.emulator import Emulator

TESTS = Path(__file__).parents[1]
ALL_KERNELS = """
import sys, torch
from helpers import small_run
from helpers.emulator import Emulator
from helpers.emulator.device import EmulatedDevice

order = int(sys.argv[1])
torch.autograd.set_multithreading_enabled(False)
kernels = Emulator(order=order, is_sanitized=True)
with EmulatedDevice.with_late_streams(order, kernels) as gpu:
    small_run.run(gpu)
print(sorted(set(kernels.launches)))
"""
MISALIGNED = """
import ctypes, sys
from pathlib import Path
from helpers.emulator import Emulator

kernels = Emulator((Path(sys.argv[1]),), is_sanitized=True)
kernels.launch("misaligned", 1, 1, ctypes.c_uint64(ctypes.addressof(ctypes.c_int64()) + 1))
"""
KERNELS = """
extern "C" __global__ void misaligned(int* at) { *at = 1; }
extern "C" __global__ void lost_counts(int* count, int* other) {
  const int before = *count;
  atomicAdd(other, 1);
  *count = before + 1;
}
extern "C" __global__ void own_shared(int* count, int* wrong) {
  __shared__ unsigned block;
  if (threadIdx.x == 0) block = blockIdx.x;
  __syncthreads();
  for (int i = 0; i < 4; ++i) atomicAdd(count, 1);
  if (block != blockIdx.x) atomicAdd(wrong, 1);
}
"""
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="sanitizes with GCC on Linux")


def run_python(code, *arguments):
    """Sanitizers end the process."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def made(tmp_path):
    source = tmp_path / "made.cu"
    source.write_text(KERNELS)
    return source


@pytest.mark.slow
@needs_linux
@pytest.mark.timeout(400)
@pytest.mark.parametrize("order", [0, 7, 1007])
@pytest.mark.skipif(bool(needs_apart[0].args[0]), reason="needs an emulated device")
def test_all_kernels_are_free_of_undefined_behavior_and_races_at_atomics(order):
    done = run_python(ALL_KERNELS, order)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "runtime error" not in done.stderr


@pytest.mark.slow
@needs_linux
def test_undefined_behavior_of_a_kernel_ends_the_process(made):
    done = run_python(MISALIGNED, made)
    assert done.returncode != 0
    assert "misaligned address" in done.stderr


@pytest.mark.slow
@needs_linux
def test_blocks_interleave_at_atomics_with_their_own_shared_memory(made):
    kernels, counts = Emulator((made,), is_sanitized=True), []
    for order in (0, 7, *range(1000, 1010)):
        kernels.order = order
        found = torch.zeros(4, dtype=torch.int32)
        places = [ctypes.c_uint64(found.data_ptr() + 4 * i) for i in range(4)]
        kernels.launch("lost_counts", 20, 1, *places[:2])
        kernels.launch("own_shared", 20, 64, *places[2:])
        assert found[1:].tolist() == [20, 20 * 64 * 4, 0]
        counts.append(int(found[0]))
    assert counts[:2] == [20, 20]
    assert min(counts[2:]) < 20
