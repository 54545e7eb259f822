"""The CUDA device with mocks of torch and of the runtime: memory, streams and captures."""

import gc
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from helpers.emulator.device import EmulatedDevice, EmulatedEvent
from tgflow.cuda import device
from tgflow.cuda.clock import EVERY_SPANS, FIRST_SPANS, StreamClock


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(device, "require_device", lambda device: torch.device("cuda", 0))
    monkeypatch.setattr(device, "Kernels", lambda device: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 100))
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
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
        self.streams = []

    def streamCreateWithFlags(self, flags):  # noqa: N802, CuPy's name
        self.streams.append(flags)
        return len(self.streams)

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
    gpu.register(4096, 100)
    assert runtime.pinned == {4096: (100, 3)}
    with pytest.raises(MemoryError, match=r"to pin 101 bytes: cudaErrorMemory.*see ulimit -l"):
        gpu.register(8192, 101)
    gpu.unregister(4096)
    assert runtime.pinned == {}


def test_each_role_has_one_non_blocking_stream_outside_the_pool_of_torch(gpu, monkeypatch):
    runtime = FakeRuntime()
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(device, "require_cupy", lambda device: cupy)
    monkeypatch.setattr(torch.cuda, "Stream", fail_with(AssertionError("a stream of the pool")))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: (handle, device))
    opened = [gpu.stream(role) for _ in range(40) for role in ("writer", "batches", "capture")]
    assert opened == [(number, gpu.device) for number in (1, 2, 3)] * 40
    assert runtime.streams == [1, 1, 1]


class FakeGraph:
    """A mock CUDA graph that records whether garbage was collected in a capture."""

    def capture_begin(self, pool, capture_error_mode):
        self.begun = pool, capture_error_mode

    def capture_end(self):
        self.collects = gc.isenabled()


def test_capture_collects_no_garbage_and_synchronizes_nothing(gpu, monkeypatch):
    for name in ("synchronize", "empty_cache", "graph"):
        monkeypatch.setattr(torch.cuda, name, fail_with(AssertionError(name)))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(gpu, "stream", lambda role: role)
    monkeypatch.setattr(gpu, "on", lambda stream: torch.no_grad())
    graph = gpu.capture(list)
    assert graph.begun == (None, "thread_local")
    assert not graph.collects
    with pytest.raises(ZeroDivisionError):
        gpu.capture(lambda: 1 // 0)
    assert gc.isenabled()


def test_device_without_an_index_is_the_current_device(gpu, monkeypatch):
    monkeypatch.setattr(device, "_devices", {torch.device("cuda", 0): gpu})
    assert device.device_of(torch.device("cuda")) is gpu


def test_out_of_memory_errors_of_torch_become_memory_errors():
    sort = device.translate_oom(fail_with(torch.OutOfMemoryError("Tried to allocate 2.00 GiB")))
    with pytest.raises(MemoryError, match=r"Tried to allocate 2\.00 GiB"):
        sort()


STREAM = 7


@dataclass(eq=False)
class TimedDevice(EmulatedDevice):
    """A device whose events complete at times in seconds set by the test."""

    now: float = 0.0
    current: int = STREAM  # type: ignore[assignment]
    events: list[EmulatedEvent] = field(default_factory=list)

    def record_time(self):
        self.events.append(EmulatedEvent(self, self.current, self.now))
        return self.events[-1]


def test_clock_counts_finished_work_without_waiting_for_the_rest():
    gpu = TimedDevice()
    clock = StreamClock(gpu)
    with clock.measuring():
        gpu.now = 3.0
    assert clock.seconds == pytest.approx(3)
    gpu.busy.add(STREAM)
    gpu.now = 10.0
    with clock.measuring():
        gpu.now = 12.5
    assert clock.seconds == pytest.approx(3)
    gpu.busy.clear()
    assert clock.seconds == pytest.approx(5.5)
    assert gpu.synchronized == 0


def test_clock_measures_one_of_every_few_spans():
    gpu = TimedDevice()
    clock = StreamClock(gpu)
    num = FIRST_SPANS + 4 * EVERY_SPANS
    for _ in range(num):
        with clock.measuring():
            gpu.now += 2.0
    assert len(gpu.events) == 2 * (FIRST_SPANS + 4)
    assert clock.seconds == pytest.approx(2 * num)
