"""An emulated GPU: kernels run on the CPU, and the test controls completion."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from helpers.emulator import Emulator
from helpers.emulator.tensors import emulated_device, pin


@dataclass(eq=False)
class EmulatedEvent:
    """An event that completes immediately unless the test keeps its stream busy."""

    gpu: EmulatedDevice
    stream: int
    time: float = 0.0
    """Time at which it was recorded, if timed."""

    def elapsed_time(self, end: EmulatedEvent) -> float:
        assert self.query(), "asked for before it was done"
        assert end.query(), "asked for before it was done"
        return 1e3 * (end.time - self.time)

    def query(self) -> bool:
        return self.stream not in self.gpu.busy

    def synchronize(self) -> None:
        self.gpu.synchronized += 1
        self.gpu.busy.discard(self.stream)


class EmulatedGraph:
    """Work repeated at each replay, with the arguments of its capture.

    Results stay at the addresses of the capture. A replay invalidates the results of graphs that
    were captured later in the same pool, as they may share memory.
    """

    def __init__(
        self,
        gpu: EmulatedDevice,
        work: Callable[[], Sequence[Tensor]],
        pool: list[weakref.ref[EmulatedGraph]],
    ) -> None:
        self._gpu, self._work, self._pool = gpu, work, pool
        self._made = self._run()
        self._number = len(pool)
        pool.append(weakref.ref(self))

    def replay(self) -> None:
        assert not self._gpu.is_capturing()
        now = self._run()
        for later in self._pool[self._number + 1 :]:
            graph = later()
            for made in () if graph is None else graph._made:
                made.untyped_storage().fill_(0xFF)  # NaN, -1
        for made, new in zip(self._made, now, strict=True):
            made.untyped_storage().copy_(new.untyped_storage())

    def _run(self) -> Sequence[Tensor]:
        self._gpu.of_thread.captures = True
        try:
            return self._work()
        finally:
            self._gpu.of_thread.captures = False


@dataclass(eq=False)
class EmulatedDevice:
    """Emulates `tgflow.cuda.device.Device` with CPU tensors or, if `apart`, its own."""

    kernels: Emulator = field(default_factory=Emulator)
    device_bytes: int = 1 << 40
    """Free bytes of the device."""
    host_bytes: int = 1 << 40
    busy: set[int] = field(default_factory=set)
    """CUDA streams with unfinished work."""
    waits: list[tuple[int, int]] = field(default_factory=list)
    """(stream, for which stream) it was made to wait."""
    streams: dict[str, int] = field(default_factory=dict)
    """CUDA streams by role, numbered from 1000."""
    kept: list[tuple[int, Tensor]] = field(default_factory=list)
    """(stream, tensor of another that stays until its work is done)."""
    captures: bool = False
    multiprocessors: int = 8
    registered: dict[int, int] = field(default_factory=dict)
    """Bytes of registered host memory by address."""
    synchronized: int = 0
    """Number of host synchronizations."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    of_thread: threading.local = field(default_factory=threading.local)
    """The current CUDA stream, and whether it is being captured."""

    @property
    def current(self) -> int:
        """The current CUDA stream of this thread."""
        return getattr(self.of_thread, "stream", 0)

    @current.setter
    def current(self, stream: int) -> None:
        self.of_thread.stream = stream

    @classmethod
    def apart(cls) -> EmulatedDevice:
        """Return a device whose tensors are distinct from CPU tensors."""
        return cls(device=emulated_device())

    def allocate(self, num_bytes: int) -> Tensor:
        if num_bytes > self.device_bytes:
            raise MemoryError(f"asked emulated for {num_bytes} bytes")
        self.device_bytes -= num_bytes
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def free_bytes(self) -> int:
        return self.device_bytes

    def allocate_host(self, num_bytes: int) -> Tensor:
        if num_bytes > self.host_bytes:
            raise MemoryError(f"asked the host for {num_bytes} bytes of pinned memory")
        self.host_bytes -= num_bytes
        return pin(torch.empty(num_bytes, dtype=torch.uint8))

    def register(self, address: int, num_bytes: int) -> None:
        if num_bytes > self.host_bytes:
            raise MemoryError(f"asked the host to pin {num_bytes} bytes")
        assert address % 4096 == num_bytes % 4096 == 0
        for begin, size in self.registered.items():
            assert address >= begin + size or address + num_bytes <= begin, "registered twice"
        self.host_bytes -= num_bytes
        self.registered[address] = num_bytes

    def unregister(self, address: int) -> None:
        self.host_bytes += self.registered.pop(address)

    def synchronize(self) -> None:
        self.synchronized += 1

    def current_stream(self) -> int:
        return self.current

    def stream(self, role: str) -> int:
        return self.streams.setdefault(role, 1000 + len(self.streams))

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def copy_from_host(self, pinned: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            return pinned.to(self.device, non_blocking=True, copy=True)
        return out.copy_(pinned, non_blocking=True)

    def open_pool(self) -> list[weakref.ref[EmulatedGraph]]:
        return []

    def capture(
        self,
        work: Callable[[], Sequence[Tensor]],
        pool: list[weakref.ref[EmulatedGraph]] | None = None,
    ) -> EmulatedGraph:
        return EmulatedGraph(self, work, [] if pool is None else pool)

    def keep_for_current_stream(self, tensor: Tensor) -> None:
        self.kept.append((self.current, tensor))

    def record_event(self) -> EmulatedEvent:
        return EmulatedEvent(self, self.current)

    def record_time(self) -> EmulatedEvent:
        return EmulatedEvent(self, self.current, time.perf_counter())

    def wait_event(self, event: EmulatedEvent) -> None:
        self.waits.append((self.current, event.stream))

    def is_capturing(self) -> bool:
        return self.captures or getattr(self.of_thread, "captures", False)
