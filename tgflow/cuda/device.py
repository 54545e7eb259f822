"""A CUDA device: memory, streams, events, captures and kernels."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, wraps
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from tgflow.cuda.launch import Kernels
from tgflow.cuda.requirements import require_cupy, require_device

_P = ParamSpec("_P")
_R = TypeVar("_R")

_capturing = threading.RLock()
"""Held by a capture, and around what no thread may do beside one."""
_postponed: deque[Callable[[], None]] = deque()
_devices: dict[torch.device, Device] = {}

CapturedWork: TypeAlias = torch.cuda.CUDAGraph
"""`replay` queues the work on the current stream; replays never run on two streams at once."""

StreamRole: TypeAlias = Literal["writer", "batches", "capture"]
"""What a stream is for: a graph's inserts, making batches, or capturing steps."""

_PORTABLE_MAPPED = 3
"""cudaHostRegisterPortable and cudaHostRegisterMapped: mapped for every device."""
_NON_BLOCKING = 1
"""cudaStreamNonBlocking: does not wait for the default stream."""


def translate_oom(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Convert torch's out-of-memory error in `call` to MemoryError, with its message."""

    @wraps(call)
    def checked(*arguments: _P.args, **options: _P.kwargs) -> _R:
        try:
            return call(*arguments, **options)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error

    return checked


class StreamEvent(Protocol):
    """A point in a stream's work: a CUDA event, whose methods torch does not type."""

    def query(self) -> bool:
        """Return whether all work before it is done; never waits."""

    def synchronize(self) -> None:
        """Wait for all work before it."""

    def elapsed_time(self, end: Any, /) -> float:
        """Return the milliseconds until a later event of `record_time`."""


class Device:
    """One CUDA device, and the host memory that it reads in place; CudaError without it."""

    def __init__(self, device: torch.device) -> None:
        self.device = require_device(device)
        self.kernels = Kernels(self.device)
        self._index = self.device.index
        """torch finds the current stream by an integer in half the time."""
        self._streams: dict[StreamRole, torch.cuda.Stream] = {}
        self._opening = threading.Lock()

    def allocate(self, num_bytes: int) -> Tensor:
        """Return `num_bytes` of device memory, uint8, contents undefined, or MemoryError."""
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self.device)
            raise MemoryError(
                f"asked {self.device} for {num_bytes} bytes, it has {free} of {total} free; "
                "set a smaller device_budget"
            ) from error

    def free_bytes(self) -> int:
        """Return the bytes that are free in the driver and unused in torch's allocator."""
        free, _ = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + kept

    def allocate_host(self, num_bytes: int) -> Tensor:
        """Return pinned host memory, uint8, at the same address on the device, or MemoryError."""
        try:
            # a thread's own device is 0, which this would open
            with torch.cuda.device(self.device):
                return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise MemoryError(f"asked the host for {num_bytes} bytes of pinned memory") from error

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of the device's memory, free or not."""
        return torch.cuda.get_device_properties(self.device).total_memory

    @cached_property
    def multiprocessors(self) -> int:
        """Number of multiprocessors of the device."""
        count: int = torch.cuda.get_device_properties(self.device).multi_processor_count
        return count

    def register(self, address: int, num_bytes: int) -> None:
        """Pin whole pages of host memory for kernels to read in place, or raise MemoryError."""
        runtime = require_cupy(self.device).cuda.runtime
        try:
            with torch.cuda.device(self.device):
                runtime.hostRegister(address, num_bytes, _PORTABLE_MAPPED)
        except runtime.CUDARuntimeError as error:
            raise MemoryError(
                f"asked the host to pin {num_bytes} bytes: {error}; "
                "see ulimit -l and how much memory is free"
            ) from error

    def unregister(self, address: int) -> None:
        """Undo `register` of that address; nothing may read there afterwards."""
        with torch.cuda.device(self.device):
            require_cupy(self.device).cuda.runtime.hostUnregister(address)

    def synchronize(self) -> None:
        """Wait for all streams of the device, which another thread's capture has to end for."""
        with _capturing:
            self._synchronize()

    def _synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def current_stream(self) -> int:
        """Return the handle of torch's current stream."""
        return torch.cuda.current_stream(self._index).cuda_stream

    def stream(self, role: StreamRole) -> object:
        """Return the device's stream for a role, for `on`; it is opened once.

        Torch's own streams are 32 in turn: one that is being captured could be another's as well.
        """
        with self._opening:
            if role not in self._streams:
                runtime = require_cupy(self.device).cuda.runtime
                with torch.cuda.device(self.device):
                    handle = runtime.streamCreateWithFlags(_NON_BLOCKING)
                self._streams[role] = torch.cuda.ExternalStream(handle, self.device)  # type: ignore[no-untyped-call]
            return self._streams[role]

    def on(self, stream: object) -> AbstractContextManager[object]:
        """Make a stream of a role this thread's current stream in the context."""
        assert isinstance(stream, torch.cuda.Stream)
        return torch.cuda.stream(stream)

    def copy_from_host(self, pinned: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a copy of pinned memory, uint8 `[N]`, which the current stream reads later."""
        if out is None:
            return pinned.to(self.device, non_blocking=True)
        return out.copy_(pinned, non_blocking=True)

    def open_pool(self) -> object:
        """Return a memory pool that captured graphs share, for `capture`."""
        with torch.cuda.device(self.device):
            return torch.cuda.graph_pool_handle()

    def capture(
        self, work: Callable[[], Sequence[Tensor]], pool: object | None = None
    ) -> CapturedWork:
        """Capture the work that `work` queues on the current stream, without running it.

        Waits for another capture at most. Other threads may launch, allocate and copy concurrently.
        All captures are on one stream, as cuBLAS keeps tens of MiB of workspace for each stream.
        `work` returns the tensors that it makes. Its inputs and outputs must keep their addresses;
        run it before, so that all its kernels are compiled. Graphs of a `pool` must never run
        concurrently, and a replay overwrites outputs of graphs captured later from it.
        """
        graph, handle = torch.cuda.CUDAGraph(), cast(Any, pool)
        with exclusively(), torch.cuda.device(self.device), self.on(self.stream("capture")):
            # "thread_local": other threads' work does not abort the capture; two at once might
            graph.capture_begin(handle, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph

    def keep_for_current_stream(self, tensor: Tensor) -> None:
        """Keep a tensor of another stream alive until this stream's work so far is done.

        Otherwise memory that is released is free at once for the stream that it was made on.
        """
        tensor.record_stream(torch.cuda.current_stream(self._index))

    def record_event(self) -> StreamEvent:
        """Return an event after the current stream's work so far."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._index))
        return cast(StreamEvent, event)

    def record_time(self) -> StreamEvent:
        """Return a timed event after the current stream's work so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._index))
        return event

    def wait_event(self, event: StreamEvent) -> None:
        """Make later work of the current stream wait for `event`; the host does not wait."""
        torch.cuda.current_stream(self._index).wait_event(cast(Any, event))

    def is_capturing(self) -> bool:
        """Return whether torch's current stream is being captured."""
        return torch.cuda.is_current_stream_capturing()


@contextmanager
def exclusively() -> Iterator[None]:
    """Enclose a capture: one at a time, without garbage collection, as finalizers may wait."""
    with _capturing:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()
    _finalize()


def after_captures(gpu: Device, work: Callable[[], None]) -> None:
    """Call `work`, a finalizer that waits for a device, once no thread captures; never waits."""
    _postponed.append(work)
    if not gpu.is_capturing():
        _finalize()


def _finalize() -> None:
    if _capturing.acquire(blocking=False):
        try:
            for _ in range(len(_postponed)):
                _postponed.popleft()()
        finally:
            _capturing.release()


def device_of(device: torch.device) -> Device:
    """Return the device of tensors on `device`, opened once; CudaError if it cannot be used."""
    if device not in _devices and device.type == "cuda" and device.index is None:
        device = require_device(device)  # "cuda" and its index are one device
    if device not in _devices:
        _devices[device] = Device(device)
    return _devices[device]


def has_device(device: torch.device) -> bool:
    """Return whether kernels run for tensors on `device`: CUDA's, and registered ones."""
    return device.type == "cuda" or device in _devices


def register_device(device: Device) -> None:
    """Make `device_of` return this device, which is not CUDA's, for its tensors."""
    _devices[device.device] = device
