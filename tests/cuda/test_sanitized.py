"""Every kernel under the sanitizer of undefined behavior, late, interleaved, in filled memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.devices import needs_apart

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sanitizes with GCC on Linux")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("order", [0, 7, 1007])
@pytest.mark.skipif(bool(needs_apart[0].args[0]), reason="needs an emulated device")
def test_all_kernels_are_free_of_undefined_behavior_and_races_at_atomics(order):
    command = [sys.executable, "-c", ALL_KERNELS, str(order)]  # sanitizers end the process
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "runtime error" not in done.stderr
