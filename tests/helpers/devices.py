"""Runs a test once per device: the CPU and the GPU path are twins.

"apart" is the GPU path with its kernels run on the CPU, lane by lane (see helpers/emulator), and
with tensors that are not the CPU's, so that code which mixes them up fails.
"""

import pytest
import torch

from helpers.emulator import tensors
from helpers.emulator.device import EmulatedDevice
from tgflow.cuda.device import Device, register_device
from tgflow.graph import sampling
from tgflow.graph.sampling import Neighbors

HAS_CUDA = torch.cuda.is_available()

_no_cuda = pytest.mark.skipif(not HAS_CUDA, reason="torch finds no CUDA device")
needs_cuda = [pytest.mark.gpu, _no_cuda]
needs_apart = [
    pytest.mark.skipif(not tensors.IS_THERE, reason="this PyTorch lets no Python be a device")
]
cuda, apart = pytest.param("cuda", marks=needs_cuda), pytest.param("apart", marks=needs_apart)

for_each_device = pytest.mark.parametrize("device", ["cpu", apart, cuda])
for_each_gpu = pytest.mark.parametrize("gpu", [apart, cuda])


def opened(device):
    """The `device` argument of `TemporalGraph` for this device."""
    return EmulatedDevice.apart() if device == "apart" else device


def device_of(gpu):
    """The device object."""
    device = opened(gpu)
    return Device(torch.device(device)) if isinstance(device, str) else device


def place_of(device):
    """The torch device of the tensors that this device reads; the CPU for None."""
    if device == "apart":
        register_device(EmulatedDevice.apart())
        return tensors.emulated_device()
    return torch.device("cuda" if device == "cuda" else "cpu")


def on_cpu(found):
    if found.nodes.is_cpu:
        return found
    return Neighbors(found.nodes.cpu(), found.t.cpu(), found.eid.cpu(), found.count.cpu())


def at_home(sample):
    """The sampler, its queries moved to the graph's device and its answers to the CPU."""

    def asked(graph, *queries, **options):
        def moved(value):
            return value.to(graph.device) if isinstance(value, torch.Tensor) else value

        there = {name: moved(value) for name, value in options.items()}
        return on_cpu(sample(graph, *map(moved, queries), **there))

    return asked


recent_neighbors = at_home(sampling.recent_neighbors)
uniform_neighbors = at_home(sampling.uniform_neighbors)
sample_neighbors = at_home(sampling.sample_neighbors)


@pytest.fixture
def without_autograd_threads():
    """An emulated device has no autograd thread."""
    with torch.autograd.set_multithreading_enabled(False):
        yield
