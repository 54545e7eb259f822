"""Who may still read what a writer has replaced: nothing is reused before they are done."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tgflow.cuda.device import Device, StreamEvent


class Readers:
    """Things retired by a writer, until the kernels that were in flight are done.

    Readers on the writer's own stream are done when its next kernel begins. A reader on another
    stream first waits, on the device, for the latest publication, so only those that were launched
    before the one without a thing can reach it. Nobody ever makes the host wait. What a captured
    graph reads is not seen when it is captured: enclose each replay in `reading`.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._lock = threading.RLock()  # samplers may be called within `reading`
        self._writer = gpu.current_stream()
        self._published: StreamEvent | None = None
        self._num_published = 0
        self._seen: dict[int, int] = {}
        """Per stream, the publication that it has waited for."""
        self._reading: dict[int, StreamEvent] = {}
        """Per stream, where its latest read ends."""
        self._retiring: list[tuple[object, bool]] = []
        self._retired: deque[tuple[object, list[StreamEvent]]] = deque()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Enclose the launch of kernels that read on the current stream, or of graphs of them."""
        if self._gpu.is_capturing():
            yield
            return
        with self._lock:
            stream = self._gpu.current_stream()
            away = stream != self._writer
            if away and self._seen.get(stream, 0) != self._num_published:
                assert self._published is not None
                self._gpu.wait_event(self._published)
                self._seen[stream] = self._num_published
            try:
                yield
            finally:
                if away:
                    self._reading[stream] = self._gpu.record_event()

    def wait_when_dropped(self, owner: object, *, in_host: bool = False) -> None:
        """Have the host wait for readers on other streams when `owner` and its memory go.

        What goes is free at once for later work of the stream that it was made on, and no other.
        Where a part of it is the host's (`in_host`), the writer's own work is waited for as well.
        """
        finalizer = weakref.finalize(owner, self._wait_for_all, in_host)
        finalizer.atexit = False  # the process's end gives all back

    def _wait_for_all(self, in_host: bool) -> None:
        events = [*self._reading.values(), *(e for _, waited in self._retired for e in waited)]
        if in_host and self._published is not None:
            events.append(self._published)
        if not all(event.query() for event in events):
            self._gpu.synchronize()

    def writing(self) -> None:
        """Begin to write on the current stream: behind what was written before on another."""
        with self._lock:
            stream = self._gpu.current_stream()
            if stream != self._writer and self._published is not None:
                self._gpu.wait_event(self._published)
            self._writer = stream

    def wait(self) -> None:
        """Let later work of the current stream begin when the readers launched so far are done.

        The host goes on. Readers launched later see what was published before this.
        """
        with self._lock:
            for stream, event in self._reading.items():
                if stream != self._gpu.current_stream():
                    self._gpu.wait_event(event)

    def retire(self, thing: object, *, in_host: bool = False) -> None:
        """Hand over what the state to be published next does not reach any more.

        What the device reads in the host's memory (`in_host`) is also kept until the writer's own
        kernels are done: the host would use it again at once, in no stream's order.
        """
        self._retiring.append((thing, in_host))

    def published(self) -> StreamEvent:
        """Note that what was launched so far on the writer's stream is a state for readers.

        Returns its point in that stream.
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
        """Return what nobody reads any more, in the order in which it was retired."""
        done = []
        with self._lock:
            while self._retired and all(event.query() for event in self._retired[0][1]):
                done.append(self._retired.popleft()[0])
        return done
