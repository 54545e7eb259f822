"""What a store needs of a GPU: memory, kernels, and to know what is still running."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, wraps
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor

from tgflow.cuda.launch import CudaKernels, Kernels
from tgflow.cuda.requirements import require_cupy, require_device

_P = ParamSpec("_P")
_R = TypeVar("_R")

_capturing = threading.Lock()

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
    """A point in a stream's work (a CUDA event)."""

    def query(self) -> bool:
        """Return whether all work before it is done; never waits."""

    def synchronize(self) -> None:
        """Wait for all work before it."""


class TimedEvent(Protocol):
    """A point in a stream's work, and when it came to it (a CUDA event with timing)."""

    def query(self) -> bool:
        """Return whether all work before it is done; never waits."""

    def elapsed_time(self, end: Any, /) -> float:
        """Return the milliseconds until another event; less than 0 if that was before."""


class CapturedWork(Protocol):
    """Work that was captured in a CUDA graph."""

    def replay(self) -> None:
        """Queue it on the current stream: it fills the tensors that were made when it was captured.

        Replays come one after the other: never on two streams at once.
        """


class Device(Protocol):
    """A device, and the host's memory that it reads in place."""

    device: torch.device
    kernels: Kernels

    def allocate(self, num_bytes: int) -> Tensor:
        """Return `num_bytes` of device memory, uint8, contents undefined."""

    def free_bytes(self) -> int:
        """Return how many bytes of device memory are free; others may take some meanwhile."""

    def allocate_host(self, num_bytes: int) -> Tensor:
        """Return `num_bytes` of host memory that kernels read in place, uint8."""

    @property
    def multiprocessors(self) -> int:
        """How many thread blocks at least run side by side."""

    def register(self, address: int, num_bytes: int) -> None:
        """Let kernels read host memory, whole pages, in place; MemoryError if it cannot be."""

    def unregister(self, address: int) -> None:
        """Undo `register` of that address; nothing may read there any more."""

    def synchronize(self) -> None:
        """Wait for all work of the device."""

    def current_stream(self) -> int:
        """Return the current stream."""

    def open_stream(self) -> object:
        """Return a stream of its own, as `on` takes it."""

    def on(self, stream: object) -> AbstractContextManager[object]:
        """Make `stream`, of `open_stream`, this thread's current stream within."""

    def copy_from_host(self, pinned: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a copy of pinned memory on the device, made on the current stream meanwhile.

        Args:
            pinned: uint8 `[N]`.
            out: Where to; by default newly allocated.
        """

    def open_pool(self) -> object:
        """Return a pool of memory that captured graphs share, as `capture` takes it."""

    def capture(
        self, work: Callable[[], Sequence[Tensor]], pool: object | None = None
    ) -> CapturedWork:
        """Capture what `work` queues on the current stream, which is not done; see `CapturedWork`.

        Waits for the device. Other threads may launch, allocate and copy meanwhile.

        Args:
            work: Returns the tensors that it makes. What it reads and writes must stay where it is;
                it has been run before, so that all it needs is compiled.
            pool: Of `open_pool`. Its graphs never run at the same time, and a replay spoils what
                graphs of it that were captured later have made. None: memory of its own.
        """

    def keep_for_current_stream(self, tensor: Tensor) -> None:
        """Have the memory of a tensor of another stream stay until this one's work so far is done.

        Without it, memory that is let go of is free at once for the stream that it was made on.
        """

    def record_event(self, event: StreamEvent | None = None) -> StreamEvent:
        """Return the point that the current stream's work has come to.

        Args:
            event: An event of this device that nobody needs as it is any more, to be recorded
                again instead of a new one.
        """

    def record_time(self) -> TimedEvent:
        """Return the point that the current stream's work has come to, which is timed."""

    def wait_event(self, event: StreamEvent) -> None:
        """Let later work of the current stream begin when `event` is done; the host goes on."""

    def is_capturing(self) -> bool:
        """Return whether the current stream's work is being captured in a graph."""


class CudaDevice:
    """One CUDA device.

    Raises:
        CudaError: If it cannot be used; the message says what is missing.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = require_device(device)
        self.kernels: Kernels = CudaKernels(self.device)

    def allocate(self, num_bytes: int) -> Tensor:
        """Return device memory, or raise MemoryError saying how much was asked for and is free."""
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self.device)
            raise MemoryError(
                f"asked {self.device} for {num_bytes} bytes, it has {free} of {total} free; "
                "set a smaller device_budget"
            ) from error

    def free_bytes(self) -> int:
        """Return what the driver has left, and torch's allocator keeps without use."""
        free, _ = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + kept

    def allocate_host(self, num_bytes: int) -> Tensor:
        """Return pinned memory, whose address is the same on the device, or raise MemoryError."""
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
        """Pin host memory, whose address is the same on all devices, or raise MemoryError."""
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
        """Unpin host memory."""
        with torch.cuda.device(self.device):
            require_cupy(self.device).cuda.runtime.hostUnregister(address)

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self.device)

    def current_stream(self) -> int:
        """Return torch's current stream."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def open_stream(self) -> torch.cuda.Stream:
        """Return a stream of the device, of those that torch hands out in turn."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def on(self, stream: object) -> AbstractContextManager[object]:
        """Make it torch's current stream."""
        assert isinstance(stream, torch.cuda.Stream)
        return torch.cuda.stream(stream)

    def copy_from_host(self, pinned: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a copy on the device; does not synchronize."""
        if out is None:
            return pinned.to(self.device, non_blocking=True)
        return out.copy_(pinned, non_blocking=True)

    def open_pool(self) -> object:
        """Return the handle of a pool of torch's allocator."""
        with torch.cuda.device(self.device):
            return torch.cuda.graph_pool_handle()

    def capture(
        self, work: Callable[[], Sequence[Tensor]], pool: object | None = None
    ) -> CapturedWork:
        """Capture a CUDA graph on the stream that is there for it.

        That is one stream for all, as cuBLAS keeps a workspace of tens of MiB for each.
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
        return self.open_stream()

    def keep_for_current_stream(self, tensor: Tensor) -> None:
        """Note with torch's allocator that the current stream reads a tensor."""
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def record_event(self, event: StreamEvent | None = None) -> StreamEvent:
        """Record a CUDA event on torch's current stream."""
        if event is None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        assert isinstance(event, torch.cuda.Event)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def record_time(self) -> TimedEvent:
        """Record a CUDA event with timing on torch's current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait_event(self, event: StreamEvent) -> None:
        """Make torch's current stream wait; does not synchronize the host."""
        assert isinstance(event, torch.cuda.Event)
        torch.cuda.current_stream(self.device).wait_event(event)

    def is_capturing(self) -> bool:
        """Return whether torch's current stream is being captured."""
        return torch.cuda.is_current_stream_capturing()
