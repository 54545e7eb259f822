"""A CUDA device: memory, streams, events, captures and kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, wraps
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from tgflow.cuda.launch import Kernels
from tgflow.cuda.requirements import require_cupy, require_device

_P = ParamSpec("_P")
_R = TypeVar("_R")

_capturing = threading.Lock()
_devices: dict[torch.device, Device] = {}

CapturedWork: TypeAlias = torch.cuda.CUDAGraph
"""`replay` queues the work on the current stream; replays never run on two streams at once."""

_PORTABLE_MAPPED = 3
"""cudaHostRegisterPortable and cudaHostRegisterMapped: pinned and in place for every device."""


def translate_oom(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raise MemoryError where torch runs out of device memory in `call`, with what it says."""

    @wraps(call)
    def checked(*arguments: _P.args, **options: _P.kwargs) -> _R:
        try:
            return call(*arguments, **options)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error

    return checked


class StreamEvent(Protocol):
    """A point in a stream's work (a CUDA event, whose methods torch does not type)."""

    def query(self) -> bool:
        """Return whether all work before it is done; never waits."""

    def synchronize(self) -> None:
        """Wait for all work before it."""

    def elapsed_time(self, end: Any, /) -> float:
        """Return the milliseconds until another event of `record_time`, negative if before."""


class Device:
    """One CUDA device, and the host's memory that it reads in place.

    Raises:
        CudaError: If it cannot be used; the message says what is missing.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = require_device(device)
        self.kernels = Kernels(self.device)

    def allocate(self, num_bytes: int) -> Tensor:
        """Return `num_bytes` of device memory, uint8, contents undefined.

        Raises:
            MemoryError: If there is none; the message says how much was asked for and is free.
        """
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self.device)
            raise MemoryError(
                f"asked {self.device} for {num_bytes} bytes, it has {free} of {total} free; "
                "set a smaller device_budget"
            ) from error

    def free_bytes(self) -> int:
        """Return the bytes that the driver has left and that torch's allocator keeps unused."""
        free, _ = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + kept

    def allocate_host(self, num_bytes: int) -> Tensor:
        """Return pinned host memory, uint8, at the same address on the device, or MemoryError."""
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise MemoryError(f"asked the host for {num_bytes} bytes of pinned memory") from error

    @cached_property
    def multiprocessors(self) -> int:
        """How many multiprocessors the device has."""
        count: int = torch.cuda.get_device_properties(self.device).multi_processor_count
        return count

    def register(self, address: int, num_bytes: int) -> None:
        """Pin host memory, whole pages, for kernels to read in place; MemoryError if it cannot."""
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
        """Undo `register` of that address; nothing may read there any more."""
        with torch.cuda.device(self.device):
            require_cupy(self.device).cuda.runtime.hostUnregister(address)

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self.device)

    def current_stream(self) -> int:
        """Return the handle of torch's current stream."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def open_stream(self) -> object:
        """Return a stream, as `on` takes it, of those that torch hands out in turn."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def on(self, stream: object) -> AbstractContextManager[object]:
        """Make `stream`, of `open_stream`, this thread's current stream within."""
        assert isinstance(stream, torch.cuda.Stream)
        return torch.cuda.stream(stream)

    def copy_from_host(self, pinned: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a copy of pinned memory (uint8 `[N]`) on the device; does not synchronize.

        Args:
            pinned: Read by the current stream later: see `PinnedPool`.
            out: Where to; by default newly allocated.
        """
        if out is None:
            return pinned.to(self.device, non_blocking=True)
        return out.copy_(pinned, non_blocking=True)

    def open_pool(self) -> object:
        """Return a pool of memory that captured graphs share, as `capture` takes it."""
        with torch.cuda.device(self.device):
            return torch.cuda.graph_pool_handle()

    def capture(
        self, work: Callable[[], Sequence[Tensor]], pool: object | None = None
    ) -> CapturedWork:
        """Capture what `work` queues on the current stream, which is not done.

        Waits for the device. Other threads may launch, allocate and copy meanwhile. All captures
        are on one stream, as cuBLAS keeps a workspace of tens of MiB for each stream.

        Args:
            work: Returns the tensors that it makes. What it reads and writes must stay where it is;
                it has been run before, so that all it needs is compiled.
            pool: Of `open_pool`. Its graphs never run at the same time, and a replay spoils what
                graphs of it that were captured later have made. None: memory of its own.
        """
        graph, handle = torch.cuda.CUDAGraph(), cast(Any, pool)
        # "thread_local": what other threads do meanwhile ends no capture; two at once might
        mode = "thread_local"
        capturing = torch.cuda.graph(graph, handle, self._capture_stream, capture_error_mode=mode)
        with _capturing, torch.cuda.device(self.device), capturing:
            work()
        return graph

    @cached_property
    def _capture_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def keep_for_current_stream(self, tensor: Tensor) -> None:
        """Have the memory of a tensor of another stream stay until this one's work so far is done.

        Without it, memory that is let go of is free at once for the stream that it was made on.
        """
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def record_event(self) -> StreamEvent:
        """Return the point that the current stream's work has come to."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return cast(StreamEvent, event)

    def record_time(self) -> StreamEvent:
        """Return the point that the current stream's work has come to, which is timed."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait_event(self, event: StreamEvent) -> None:
        """Let later work of the current stream begin when `event` is done; the host goes on."""
        torch.cuda.current_stream(self.device).wait_event(cast(Any, event))

    def is_capturing(self) -> bool:
        """Return whether torch's current stream is being captured."""
        return torch.cuda.is_current_stream_capturing()


def device_of(device: torch.device) -> Device:
    """Return the device that tensors of `device` are on, opened once.

    Raises:
        CudaError: If it cannot be used; the message says what is missing.
    """
    if device not in _devices:
        _devices[device] = Device(device)
    return _devices[device]


def has_device(device: torch.device) -> bool:
    """Return whether kernels serve tensors of `device`: on CUDA's, and on those registered."""
    return device.type == "cuda" or device in _devices


def register_device(device: Device) -> None:
    """Have `device_of` return a device that is not CUDA's for its tensors."""
    _devices[device.device] = device
