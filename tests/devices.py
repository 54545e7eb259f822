"""Runs a test once per device: the CPU and the GPU path are twins.

"emulated" is the GPU path with its kernels run on the CPU, lane by lane (see tests/emulator).
"""

from __future__ import annotations

import pytest
import torch
from emulator.machine import EmulatedMachine

from tgflow.sampling import Neighbors

HAS_CUDA = torch.cuda.is_available()
DEVICES = ["cpu", "emulated", *(["cuda"] if HAS_CUDA else [])]

_no_cuda = pytest.mark.skipif(not HAS_CUDA, reason="torch finds no CUDA device")

for_each_device = pytest.mark.parametrize(
    "device", ["cpu", "emulated", pytest.param("cuda", marks=[pytest.mark.gpu, _no_cuda])]
)


def opened(device: str) -> str | EmulatedMachine:
    """What `TemporalGraph(device=...)` takes for this device."""
    return EmulatedMachine() if device == "emulated" else device


def on(device: str, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors where a graph on this device wants its queries."""
    return [tensor.to("cuda" if device == "cuda" else "cpu") for tensor in tensors]


def on_cpu(found: Neighbors) -> Neighbors:
    return Neighbors(found.nodes.cpu(), found.t.cpu(), found.eid.cpu(), found.count.cpu())
