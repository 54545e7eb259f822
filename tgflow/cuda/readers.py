"""Tracks readers of memory that a writer has replaced, so that it is reused only after them."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tgflow.cuda.device import Device, StreamEvent, after_captures


class Readers:
    """Objects retired by a writer, kept until running kernels are done.

    Readers on the writer's own stream are done when its next kernel begins. A reader on another
    stream first waits, on the device, for the latest publication, so only readers launched before
    the publication without an object can reach it. The host never waits. Reads of a captured
    graph are not tracked at capture: enclose each replay in `reading`.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._lock = threading.RLock()  # reentrant: samplers may be called within `reading`
        self._writer = gpu.current_stream()
        self._published: StreamEvent | None = None
        self._num_published = 0
        self._seen = defaultdict[int, int](int)
        """Per stream, the latest publication that it has waited for."""
        self._reading: dict[int, StreamEvent] = {}
        """Per stream, the end of its latest read."""
        self._retiring: list[tuple[object, bool]] = []
        self._retired: deque[tuple[object, list[StreamEvent]]] = deque()

    @contextmanager
    def reading(self, *others: Readers) -> Iterator[None]:
        """Enclose the launch of reading kernels, or graphs of them, on the current stream.

        Args:
            others: Those of other memory that is read as well.
        """
        if self._gpu.is_capturing():
            yield
            return
        with ExitStack() as holding:
            stream, away = self._gpu.current_stream(), list[Readers]()
            for each in (self, *others):
                holding.enter_context(each._lock)
                if stream == each._writer:
                    continue
                away += (each,)
                if each._seen[stream] != each._num_published:
                    assert each._published is not None
                    self._gpu.wait_event(each._published)
                    each._seen[stream] = each._num_published
            try:
                yield
            finally:
                if away:
                    done = self._gpu.record_event()
                    for each in away:
                        each._reading[stream] = done

    def wait_when_dropped(self, owner: object, *, in_host: bool = False) -> None:
        """Make the host wait for readers on other streams when `owner` is garbage-collected.

        Its memory is free at once for later work of the stream that allocated it, and no other.
        Where a part of it is host memory (`in_host`), the writer's own work is waited for as well.
        """
        finalizer = weakref.finalize(owner, self._wait_for_all, in_host)
        finalizer.atexit = False  # the system frees all at exit

    def _wait_for_all(self, in_host: bool) -> None:
        if self._gpu.is_capturing():  # where asking an event would abort the capture
            after_captures(self._gpu, partial(self._wait_for_all, in_host))
            return
        events = [*self._reading.values(), *(e for _, waited in self._retired for e in waited)]
        if in_host and self._published is not None:
            events.append(self._published)
        for event in events:
            if not event.query():
                event.synchronize()

    def writing(self) -> None:
        """Begin a write on the current stream, ordered after writes on others."""
        with self._lock:
            stream = self._gpu.current_stream()
            if stream != self._writer and self._published is not None:
                self._gpu.wait_event(self._published)
            self._writer = stream

    def wait(self) -> None:
        """Make later work of the current stream wait for the readers launched so far.

        The host does not wait. Readers launched later see the state published before.
        """
        with self._lock:
            for stream, event in self._reading.items():
                if stream != self._gpu.current_stream():
                    self._gpu.wait_event(event)

    def retire(self, thing: object, *, in_host: bool = False) -> None:
        """Retire an object that the next published state does not reach.

        Host memory that the device reads (`in_host`) is also kept until the writer's own
        kernels are done: the host would reuse it at once, outside of any stream's order.
        """
        self._retiring.append((thing, in_host))

    def published(self) -> StreamEvent:
        """Publish the state after the work launched so far on the writer's stream.

        Returns its event in that stream.
        """
        with self._lock:
            self._published = self._gpu.record_event()
            self._num_published += 1
            reading = [each for stream, each in self._reading.items() if stream != self._writer]
            for thing, in_host in self._retiring:
                waited = [*reading, self._published] if in_host else reading
                self._retired.append((thing, waited))
            self._retiring = []
            return self._published

    def reclaim(self) -> list[object]:
        """Return the objects without readers, in the order of retirement."""
        done = []
        with self._lock:
            while self._retired and all(event.query() for event in self._retired[0][1]):
                done.append(self._retired.popleft()[0])
        return done
