"""Compiling and launching, with a CuPy that only writes down what it is asked for."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tgflow.cuda import CudaError, launch, sources


class Pair(ctypes.Structure):
    _fields_ = [("first", ctypes.c_void_p), ("second", ctypes.c_int64)]


class FakeCupy:
    """Notes modules, streams and launches."""

    __version__ = "14.2.0"

    def __init__(self, error: Exception | None = None) -> None:
        self.modules: list[dict] = []
        self.launches: list[tuple] = []
        self.streams: list[tuple[int, int]] = []
        """As `__cuda_stream__` gives them."""
        self.error = error
        compiler = SimpleNamespace(CompileException=ZeroDivisionError)
        stream = SimpleNamespace(from_external=self.stream)
        self.cuda = SimpleNamespace(compiler=compiler, Stream=stream)

    def stream(self, external):
        self.streams.append(external.__cuda_stream__())
        return torch.no_grad()  # any context

    def RawModule(self, **options):  # noqa: N802, CuPy's name
        self.modules.append(options)
        return self

    def compile(self):
        if self.error is not None:
            raise self.error

    def get_function(self, name):
        return lambda grid, block, arguments: self.launches.append((name, grid, block, arguments))


@pytest.fixture
def fake(monkeypatch):
    cupy = FakeCupy()
    monkeypatch.setattr(launch, "require_cupy", lambda device: cupy)
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    return cupy


def test_a_kernel_is_compiled_once_and_launched_on_torchs_stream(fake):
    kernels = launch.CudaKernels(torch.device("cuda", 1))
    name, path = next(iter(sources.kernels().items()))
    for second in (5, 6):
        kernels.launch(name, 3, 128, Pair(40, second), ctypes.c_uint64(2**63))
    assert [module["code"] for module in fake.modules] == [path.read_text()]
    assert fake.streams == [(0, 77)] * 2
    assert [call[:3] for call in fake.launches] == [(name, (3,), (128,))] * 2
    pair, key = fake.launches[1][3]
    assert pair.tobytes() == np.array([40, 6]).tobytes()
    assert key.dtype == np.uint64
    assert key[0] == 2**63


def test_what_the_compiler_says_is_passed_on(fake):
    fake.error = ZeroDivisionError("kernel.cu(3): error: no such thing")
    kernels = launch.CudaKernels(torch.device("cuda", 0))
    with pytest.raises(CudaError, match=r"(?s)could not compile .*\.cu .*error: no such thing"):
        kernels.launch(next(iter(sources.kernels())), 1, 32)


def test_the_cache_is_keyed_by_every_header(tmp_path, monkeypatch):
    """CuPy's key holds options and one source file: a changed header must change an option."""
    for folder, name in (("cuda", "k.cu"), ("include/tgflow", "k.hpp")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text("int k;")
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    before = sources.digest()
    (tmp_path / "include/tgflow/k.hpp").write_text("int l;")
    assert sources.digest() != before
    assert any(option.endswith(f"0x{sources.digest()}") for option in sources.options())
    assert "--fmad=false" in sources.options()
