"""Who may still read what a writer has replaced: nothing is reused before they are done."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from torch import Tensor

from tgflow.cuda.device import Device, StreamEvent

Retired: TypeAlias = "tuple[Tensor, Tensor | None]"
"""Free items and their size classes, or memory and None."""


class Readers:
    """Things retired by a writer, until the kernels that were in flight are done.

    Readers on the writer's own stream are done when its next kernel begins. A reader on another
    stream first waits, on the device, for the latest publication, so only those that were launched
    before the one without a thing can reach it. Nobody ever makes the host wait. Replays of a
    captured graph are not seen here: run them on the writer's stream, or order them with it.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._writer = gpu.current_stream()
        self._published: StreamEvent | None = None
        self._reading: dict[int, StreamEvent] = {}
        self._retiring: list[Retired] = []
        self._retired: list[tuple[Retired, list[StreamEvent]]] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Enclose the launch of a kernel that reads the store on the current stream."""
        if self._gpu.is_capturing():
            yield
            return
        with self._lock:
            stream = self._gpu.current_stream()
            away = stream != self._writer
            if away and self._published is not None:
                self._gpu.wait_event(self._published)
            yield
            if away:
                self._reading[stream] = self._gpu.record_event()

    def wait_when_dropped(self, owner: object) -> None:
        """Have the host wait for readers on other streams when `owner` and its memory go.

        What goes is free at once for later work of the stream that it was made on, and no other.
        """
        finalizer = weakref.finalize(owner, _wait, self._gpu, self._reading)
        finalizer.atexit = False  # the process's end gives all back

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

    def retire(self, thing: Retired) -> None:
        """Hand over what the state to be published next does not reach any more."""
        self._retiring.append(thing)

    def published(self) -> None:
        """Note that what was launched so far on the writer's stream is a state for readers."""
        with self._lock:
            self._published = self._gpu.record_event()
            events = [event for stream, event in self._reading.items() if stream != self._writer]
            self._retired += [(thing, events) for thing in self._retiring]
            self._retiring = []

    def reclaim(self) -> list[Retired]:
        """Return what nobody reads any more, in the order in which it was retired."""
        done = []
        with self._lock:
            while self._retired and all(event.query() for event in self._retired[0][1]):
                done.append(self._retired.pop(0)[0])
        return done


def _wait(gpu: Device, reading: dict[int, StreamEvent]) -> None:
    if not all(event.query() for event in reading.values()):
        gpu.synchronize()
