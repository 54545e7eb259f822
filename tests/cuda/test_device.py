"""Out of memory on a GPU, with a torch that fails to allocate."""

from types import SimpleNamespace

import pytest
import torch

from tgflow.cuda import device


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(device, "require_device", lambda device: torch.device("cuda", 0))
    monkeypatch.setattr(device, "Kernels", lambda device: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 100))
    return device.Device(torch.device("cuda"))


def fail_with(error):
    def fail(*_, **__):
        raise error

    return fail


def test_device_out_of_memory_error_names_the_requested_bytes(gpu, monkeypatch):
    monkeypatch.setattr(torch, "empty", fail_with(torch.OutOfMemoryError("no")))
    with pytest.raises(MemoryError, match="asked cuda:0 for 77 bytes, it has 5 of 100 free; set a"):
        gpu.allocate(77)


def test_host_out_of_memory_error_names_the_requested_bytes(gpu, monkeypatch):
    monkeypatch.setattr(torch, "empty", fail_with(RuntimeError("CUDA error: out of memory")))
    with pytest.raises(MemoryError, match="asked the host for 77 bytes of pinned memory"):
        gpu.allocate_host(77)


class FakeRuntime:
    """A mock CUDA runtime with space for 100 pinned bytes."""

    class CUDARuntimeError(Exception):
        pass

    def __init__(self):
        self.pinned = {}

    def hostRegister(self, address, num_bytes, flags):  # noqa: N802, CuPy's name
        if num_bytes > 100:
            raise self.CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        self.pinned[address] = (num_bytes, flags)

    def hostUnregister(self, address):  # noqa: N802, CuPy's name
        del self.pinned[address]


def test_host_memory_is_pinned_for_all_devices_and_unpinned(gpu, monkeypatch):
    runtime = FakeRuntime()
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(device, "require_cupy", lambda device: cupy)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    gpu.register(4096, 100)
    assert runtime.pinned == {4096: (100, 3)}
    with pytest.raises(MemoryError, match=r"to pin 101 bytes: cudaErrorMemory.*see ulimit -l"):
        gpu.register(8192, 101)
    gpu.unregister(4096)
    assert runtime.pinned == {}


def test_out_of_memory_errors_of_torch_become_memory_errors():
    sort = device.translate_oom(fail_with(torch.OutOfMemoryError("Tried to allocate 2.00 GiB")))
    with pytest.raises(MemoryError, match=r"Tried to allocate 2\.00 GiB"):
        sort()
