"""Out of memory on a GPU, with a torch that has none to give."""

from types import SimpleNamespace

import pytest
import torch

from tgflow.cuda import machine


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(machine, "require_device", lambda device: torch.device("cuda", 0))
    monkeypatch.setattr(machine, "CudaKernels", lambda device: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 100))
    return machine.CudaMachine(torch.device("cuda"))


def fail_with(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_full_device_says_how_much_was_asked_for(gpu, monkeypatch):
    monkeypatch.setattr(torch, "empty", fail_with(torch.OutOfMemoryError("no")))
    with pytest.raises(MemoryError, match="asked cuda:0 for 77 bytes, it has 5 of 100 free; set a"):
        gpu.allocate(77)


def test_a_full_host_says_how_much_was_asked_for(gpu, monkeypatch):
    monkeypatch.setattr(torch, "empty", fail_with(RuntimeError("CUDA error: out of memory")))
    with pytest.raises(MemoryError, match="asked the host for 77 bytes of pinned memory"):
        gpu.allocate_host(77)


def test_what_torch_lacks_elsewhere_is_a_memory_error_too():
    sort = machine.says_how_much(fail_with(torch.OutOfMemoryError("Tried to allocate 2.00 GiB")))
    with pytest.raises(MemoryError, match=r"Tried to allocate 2\.00 GiB"):
        sort()
