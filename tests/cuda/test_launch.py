"""Compiling and launching, with a mock CuPy and a mock driver that record calls."""

import ctypes
import threading
from types import SimpleNamespace

import pytest
import torch

from tgflow.cuda import CudaError, launch, sources

PRIMARY = 100
"""The context of device 0 in the mock driver; those of other devices follow."""


class Pair(ctypes.Structure):
    _fields_ = [("first", ctypes.c_void_p), ("second", ctypes.c_int64)]


class FakeCupy:
    """Mock CuPy module that records modules; functions are numbered."""

    __version__ = "14.2.0"

    def __init__(self):
        self.modules = []
        self.functions = []
        """Functions; the pointer of each is its index, from 1."""
        self.error = None
        self.cuda = SimpleNamespace(compiler=SimpleNamespace(CompileException=ZeroDivisionError))

    def RawModule(self, **options):  # noqa: N802, CuPy's name
        self.modules.append(options)
        return self

    @property
    def module(self):
        if self.error is not None:
            raise self.error
        return self

    def get_function(self, name):
        self.functions.append(name)
        return SimpleNamespace(ptr=len(self.functions))


class FakeDriver:
    """Mock driver that records launches and argument bytes; threads start without a context."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.status = 0
        self.launches = []
        self._current = threading.local()

    def __getattr__(self, name):
        """Return a call that succeeds and sets the value of a reference."""
        results = {
            "cuInit": lambda flags: None,
            "cuDeviceGet": set_to,
            "cuDevicePrimaryCtxRetain": lambda held, device: set_to(held, PRIMARY + device.value),
            "cuCtxGetCurrent": lambda held: set_to(held, getattr(self._current, "value", None)),
            "cuCtxSetCurrent": lambda context: setattr(self._current, "value", context.value),
            "cuDriverGetVersion": lambda version: set_to(version, 13010),
            "cuGetErrorName": lambda status, text: set_to(text, b"CUDA_ERROR_ILLEGAL_ADDRESS"),
            "cuGetErrorString": lambda status, text: set_to(text, b"an illegal memory access"),
        }
        return lambda *given: results[name](*given) or 0

    def cuLaunchKernel(self, function, *shape_and_more):  # noqa: N802, the driver's name
        *shape, shared, stream, addresses, extra = shape_and_more
        assert (shared, extra) == (0, None)
        assert len(addresses) == len(self.sizes)
        passed = [ctypes.string_at(*each) for each in zip(addresses, self.sizes, strict=True)]
        self.launches.append((function, shape, stream, self._current.value, passed))
        return self.status


def set_to(reference, value):
    reference._obj.value = value


@pytest.fixture
def fake(monkeypatch):
    """A mock CuPy and driver; torch's current CUDA stream is 77."""
    cupy, made = FakeCupy(), FakeDriver((16, 8))
    monkeypatch.setattr(launch, "require_cupy", lambda device: cupy)
    monkeypatch.setattr(launch, "library", lambda: made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=77))
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    return SimpleNamespace(cupy=cupy, driver=made)


def test_kernels_of_a_file_are_compiled_once_and_launched_on_torchs_stream(fake):
    kernels = launch.Kernels(torch.device("cuda", 1))
    name, path = next(iter(sources.kernels().items()))
    for second in (5, 6):
        kernels.launch(name, 3, 128, Pair(40, second), ctypes.c_uint64(2**63))
    beside = [other for other, source in sources.kernels().items() if source == path]
    for other in beside:
        kernels.launch(other, 3, 128, Pair(40, 6), ctypes.c_uint64(2**63))
    assert [module["code"] for module in fake.cupy.modules] == [path.read_text()]
    assert fake.cupy.functions == beside, "what a capture launches must have been loaded before"
    assert len(beside) > 1
    function, shape, stream, context, (pair, key) = fake.driver.launches[1]
    assert fake.cupy.functions[function - 1] == name
    assert shape == [3, 1, 1, 128, 1, 1]
    assert (stream, context) == (77, PRIMARY + 1)
    assert pair == bytes(Pair(40, 6))
    assert int.from_bytes(key, "little") == 2**63


def test_threads_launch_in_the_context_of_the_device_and_keep_their_own(fake):
    kernels = launch.Kernels(torch.device("cuda", 2))
    name = next(iter(sources.kernels()))
    before = []

    def work(own):
        if own is not None:
            fake.driver.cuCtxSetCurrent(ctypes.c_void_p(own))
        kernels.launch(name, 1, 32, Pair(), ctypes.c_uint64())
        context = ctypes.c_void_p()
        fake.driver.cuCtxGetCurrent(ctypes.byref(context))
        before.append(context.value)

    for own in (None, PRIMARY, PRIMARY + 2):
        thread = threading.Thread(target=work, args=(own,))
        thread.start()
        thread.join()
    assert [launched[3] for launched in fake.driver.launches] == [PRIMARY + 2] * 3
    assert before == [None, PRIMARY, PRIMARY + 2]


def test_failed_launch_reports_the_driver_error(fake):
    kernels = launch.Kernels(torch.device("cuda", 0))
    fake.driver.status = 700
    name = next(iter(sources.kernels()))
    message = (
        rf"launching {name} on cuda:0, or a kernel before it: "
        r"CUDA_ERROR_ILLEGAL_ADDRESS \(700\), an illegal memory access"
    )
    with pytest.raises(CudaError, match=message):
        kernels.launch(name, 1, 32, Pair(), ctypes.c_uint64())


COMPILE_ERRORS = {
    ZeroDivisionError("kernel.cu(3): error: no such thing"): (
        r"(?s)could not compile .*\.cu .*report it .*error: no such thing"
    ),
    RuntimeError("Failed to find CUDA headers. Please install the CUDA Toolkit"): (
        r"cannot compile .*\.cu for device 0: Failed to find CUDA headers.*tgflow\.cuda\.warm"
    ),
}


@pytest.mark.parametrize("error", COMPILE_ERRORS, ids=lambda error: type(error).__name__)
def test_compile_errors_are_readable(fake, error):
    fake.cupy.error = error
    kernels = launch.Kernels(torch.device("cuda", 0))
    with pytest.raises(CudaError, match=COMPILE_ERRORS[error]):
        kernels.launch(next(iter(sources.kernels())), 1, 32)


def test_kernel_cache_is_keyed_by_every_header(tmp_path, monkeypatch):
    """CuPy's cache key has options and one source: a changed header must change an option."""
    for folder, name in (("cuda", "k.cu"), ("include/tgflow", "k.hpp")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text("int k;")
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    before = sources.digest()
    (tmp_path / "include/tgflow/k.hpp").write_text("int l;")
    assert sources.digest() != before
    options = sources.options(tmp_path / "cuda" / "k.cu")
    assert any(option.endswith(f"0x{sources.digest()}") for option in options)
