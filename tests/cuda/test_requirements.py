"""Missing GPU requirements are named with the fix, on simulated machines."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tgflow.base.extras import install_command
from tgflow.cuda import CudaError, requirements
from tgflow.cuda.requirements import require_cupy, require_device

GPU = torch.device("cuda")


@pytest.fixture
def machine(monkeypatch):
    """A complete machine with one GPU, torch for CUDA 13.0 and a matching CuPy."""
    cupy = ModuleType("cupy")
    cupy.__version__ = "14.2.0"
    runtime = SimpleNamespace(runtimeGetVersion=lambda: 13020, driverGetVersion=lambda: 13000)
    cupy.cuda = SimpleNamespace(runtime=runtime, nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    cupy.finder = SimpleNamespace(find_nvidia_header_directory=lambda library: "/include")
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", cupy.finder)
    requirements._has_headers.cache_clear()
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return cupy


def failing(error):
    def fail(*_):
        raise error

    return fail


def message(function=require_cupy, device=GPU):
    with pytest.raises(CudaError) as caught:
        function(device)
    return str(caught.value)


def test_complete_machine_meets_all_requirements(machine):
    assert require_cupy(GPU) is machine
    assert require_device(GPU) == torch.device("cuda", 0)


def replaced(module, name, value):
    return lambda cupy, patch: patch.setattr(module, name, value)


def without(name):
    return lambda cupy, patch: patch.setitem(sys.modules, name, None)


def version(name, number):
    return lambda cupy, patch: patch.setattr(cupy.cuda.runtime, name, lambda: number)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (replaced(sys, "platform", "darwin"), "CUDA needs Linux, and this is macOS; use device="),
        (
            replaced(torch.version, "cuda", None),
            "torch 2.11.0+cu130 is built without CUDA; install one that is",
        ),
        (
            replaced(torch.cuda, "current_device", failing(RuntimeError("No CUDA GPUs"))),
            "No CUDA GPUs; check nvidia-smi, and whether CUDA_VISIBLE_DEVICES",
        ),
        (without("cupy"), install_command("cuda")),
        (
            replaced(importlib, "import_module", failing(ImportError("libcudart.so: not found"))),
            f"CuPy cannot be loaded: libcudart.so: not found; {install_command('cuda')}",
        ),
        (
            version("runtimeGetVersion", 12090),
            "CuPy 14.2.0 is for CUDA 12, torch 2.11.0+cu130 for CUDA 13: "
            "pip uninstall cupy-cuda12x, then pip install cupy-cuda13x",
        ),
        (
            version("driverGetVersion", 12040),
            "the driver is for CUDA 12.4, CuPy 14.2.0 needs CUDA 13: update the driver",
        ),
        (
            lambda cupy, patch: patch.setattr(
                cupy.cuda.nvrtc, "getVersion", failing(RuntimeError("no libnvrtc.so.13"))
            ),
            "finds no NVRTC, CUDA's compiler: no libnvrtc.so.13; pip install",
        ),
        (
            lambda cupy, patch: patch.setattr(
                cupy.finder, "find_nvidia_header_directory", lambda library: None
            ),
            "CuPy 14.2.0 finds no CUDA headers, and compiles with them: "
            "pip install nvidia-cuda-runtime for CUDA 13, or set CUDA_PATH to a toolkit",
        ),
    ],
)
def test_missing_requirement_is_named(machine, monkeypatch, change, text):
    change(machine, monkeypatch)
    assert text in message()


def test_missing_driver_is_named(machine, monkeypatch):
    error = RuntimeError("Found no NVIDIA driver on your system. Please check\nmore")
    monkeypatch.setattr(torch.cuda, "init", failing(error))
    assert "finds no CUDA device: Found no NVIDIA driver" in message(require_device)
    assert "nvidia-smi" in message(require_device)


def test_missing_device_is_named(machine):
    assert message(device=torch.device("cuda:3")) == (
        "there is no device cuda:3: torch finds 1, numbered from 0"
    )


def test_cupy_with_bundled_headers_needs_no_others(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    assert require_cupy(GPU) is machine
