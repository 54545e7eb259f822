"""An emulated GPU: kernels run on the CPU, and the test controls completion."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch

from helpers.emulator import Emulator
from helpers.emulator.streams import LateStreams, Point, overwrite
from helpers.emulator.tensors import EmulatedTensor, Late, emulated_device, pin, watching
from tgflow.cuda.device import Device, exclusively, register_device


@dataclass(eq=False)
class EmulatedEvent:
    """An event that completes immediately unless its stream is late or kept busy by the test."""

    gpu: EmulatedDevice
    stream: int
    time: float = 0.0
    """Time at which it was recorded, if timed."""
    point: Point | None = None
    """Work that it follows, of late streams."""

    def elapsed_time(self, end):
        assert self.query(), "asked for before it was done"
        assert end.query(), "asked for before it was done"
        return 1e3 * (end.time - self.time)

    def query(self):
        self.gpu.refuse_in_capture("querying an event")
        if self.point is not None and self.gpu.late is not None:
            return self.gpu.late.is_done(self.point)
        return self.stream not in self.gpu.busy

    def synchronize(self):
        self.gpu.refuse_in_capture("waiting for an event")
        self.gpu.synchronized += 1
        self.gpu.busy.discard(self.stream)
        if self.point is not None and self.gpu.late is not None:
            self.gpu.late.settle(self.point)


class EmulatedGraph:
    """Work of a capture, run at each replay with the addresses and values of the capture.

    A replay invalidates the results of graphs that were captured later in the same pool, as they
    may share memory.
    """

    def __init__(self, gpu, work, pool):
        self._gpu, self._pool = gpu, pool
        Late.of_thread.sink = capture = _Capture(gpu)
        gpu.of_thread.captures = True
        try:
            self._made = work()
        finally:
            Late.of_thread.sink = None
            gpu.of_thread.captures = False
        self._captured, self._kept = capture.work, capture.kept
        capture.work = []
        self._number = len(pool)
        pool.append(weakref.ref(self))

    def replay(self):
        self._gpu.refuse_in_capture("replaying a graph")
        for work in self._captured:
            self._gpu.put(work)
        for later in self._pool[self._number + 1 :]:
            graph = later()
            for made in () if graph is None else graph._made:
                self._gpu.put(partial(overwrite, made.held))


class _Capture:
    """Takes the work of a capture, which does not run."""

    def __init__(self, gpu):
        self._gpu = gpu
        self.work = []
        self.kept = []

    def put(self, work):
        self.work.append(work)

    def settle(self):
        self._gpu.refuse_in_capture("synchronizing")

    def own(self, memory):
        self.kept.append(memory)
        return _Owner(memory, lambda: self.put(partial(overwrite, memory)))


class _Owner:
    """Frees memory at its end, for streams other than its own if it was kept for them."""

    def __init__(self, memory, free):
        self.kept_for = set()
        self._end = weakref.finalize(self, free)
        self._end.atexit = False


class _LateStream:
    """The current stream of late streams."""

    def __init__(self, gpu, late):
        self._gpu, self._late = gpu, late

    def put(self, work):
        self._gpu.put(work)

    def settle(self):
        self._late.settle(self._late.point(self._gpu.current))

    def own(self, memory):
        streams = {self._gpu.current}
        owner = _Owner(memory, partial(self._late.free, memory, streams))
        owner.kept_for = streams
        return owner


@dataclass(eq=False)
class EmulatedDevice:
    """Emulates `tgflow.cuda.device.Device` with CPU tensors or, if `apart`, its own."""

    kernels: Emulator = field(default_factory=Emulator)
    device_bytes: int = 1 << 40
    """Free bytes of the device."""
    total_bytes: int = 1 << 40
    host_bytes: int = 1 << 40
    busy: set[int] = field(default_factory=set)
    """CUDA streams with unfinished work."""
    waits: list[tuple[int, int]] = field(default_factory=list)
    """(stream, for which stream) it was made to wait."""
    streams: dict[str, int] = field(default_factory=dict)
    """CUDA streams by role, numbered from 1000."""
    multiprocessors: int = 8
    registered: dict[int, int] = field(default_factory=dict)
    """Bytes of registered host memory by address."""
    synchronized: int = 0
    """Number of host synchronizations."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    of_thread: threading.local = field(default_factory=threading.local)
    """The current CUDA stream, and whether it is being captured."""
    late: LateStreams | None = None
    """Streams that run work late; None: work runs when it is queued."""
    capturing: dict[int, int] = field(default_factory=dict)
    """Streams being captured, and by which thread."""

    @property
    def current(self):
        """The current CUDA stream of this thread."""
        return getattr(self.of_thread, "stream", 0)

    @current.setter
    def current(self, stream):
        self.of_thread.stream = stream

    @classmethod
    def apart(cls, kernels=None):
        """Return a device whose tensors are distinct from CPU tensors."""
        gpu = cls(kernels or Emulator(), device=emulated_device())
        gpu.kernels.put = gpu.put
        return gpu

    @classmethod
    @contextmanager
    def with_late_streams(cls, seed, kernels=None):
        """Register a device whose work runs late; at the end everything has run."""
        gpu = cls.apart(kernels)
        gpu.late = late = LateStreams(seed)
        Late.of_all = _LateStream(gpu, late)
        register_device(gpu)
        try:
            yield gpu
            late.settle_all()
        finally:
            gpu.late = Late.of_all = None

    def put(self, work):
        """Run work on the current stream: at once, late, or at replays of what captures it."""
        if self.capturing.get(self.current, threading.get_ident()) != threading.get_ident():
            raise RuntimeError(f"stream {self.current} is being captured by another thread")
        sink = Late.sink()
        if isinstance(sink, _Capture):
            sink.put(work)
        elif self.late is not None:
            self.late.put(self.current, work)
        else:
            work()

    def refuse_in_capture(self, what):
        """Raise like CUDA for calls that a capture does not permit."""
        if getattr(self.of_thread, "captures", False):
            raise RuntimeError(f"{what} is not permitted while a stream is being captured")

    def allocate(self, num_bytes):
        if num_bytes > self.device_bytes:
            raise MemoryError(f"asked emulated for {num_bytes} bytes")
        self.device_bytes -= num_bytes
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def free_bytes(self):
        return self.device_bytes

    def allocate_host(self, num_bytes):
        if num_bytes > self.host_bytes:
            raise MemoryError(f"asked the host for {num_bytes} bytes of pinned memory")
        self.host_bytes -= num_bytes
        return pin(torch.empty(num_bytes, dtype=torch.uint8))

    def register(self, address, num_bytes):
        if num_bytes > self.host_bytes:
            raise MemoryError(f"asked the host to pin {num_bytes} bytes")
        assert address % 4096 == num_bytes % 4096 == 0
        for begin, size in self.registered.items():
            assert address >= begin + size or address + num_bytes <= begin, "registered twice"
        self.host_bytes -= num_bytes
        self.registered[address] = num_bytes

    def unregister(self, address):
        self.host_bytes += self.registered.pop(address)

    synchronize = Device.synchronize

    def _synchronize(self):
        self.refuse_in_capture("synchronizing")
        if self.capturing:
            raise RuntimeError("synchronizing a device is not permitted beside a capture")
        self.synchronized += 1
        if self.late is not None:
            self.late.settle_all()

    def current_stream(self):
        return self.current

    def stream(self, role):
        return self.streams.setdefault(role, 1000 + len(self.streams))

    @contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def copy_from_host(self, pinned, out=None):
        if out is None:
            return pinned.to(self.device, non_blocking=True, copy=True)
        return out.copy_(pinned, non_blocking=True)

    def open_pool(self):
        return []

    def capture(self, work, pool=None):
        stream = self.stream("capture")
        with exclusively(), self.on(stream):
            self.capturing[stream] = threading.get_ident()
            try:
                return EmulatedGraph(self, work, [] if pool is None else pool)
            finally:
                del self.capturing[stream]

    def keep_for_current_stream(self, tensor):
        if isinstance(tensor, EmulatedTensor) and isinstance(tensor.owner, _Owner):
            tensor.owner.kept_for.add(self.current)

    def record_event(self):
        point = None if self.late is None else self.late.point(self.current)
        return EmulatedEvent(self, self.current, point=point)

    def record_time(self):
        event = self.record_event()
        event.time = time.perf_counter()
        return event

    def wait_event(self, event):
        self.refuse_in_capture("waiting for an event of other work")
        self.waits.append((self.current, event.stream))
        if self.late is not None and event.point is not None:
            self.late.put(self.current, event.point)

    def is_capturing(self):
        return getattr(self.of_thread, "captures", False)


class Budget(NamedTuple):
    """Work of a call: launches, torch operations on the device, waits of the host."""

    launches: int
    operations: int
    waits: int = 0


def spent(gpu, call):
    """Return the work of a call, its torch operations by name, and its result."""
    gpu.kernels.launches.clear()
    gpu.synchronized = 0
    with watching() as watch:
        result = call()
    waits = len(watch.waits) + gpu.synchronized
    budget = Budget(len(gpu.kernels.launches), watch.operations.total(), waits)
    return budget, watch.operations, result
