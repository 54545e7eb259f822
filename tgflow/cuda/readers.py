"""Who may still read what a writer has replaced: nothing is reused before they are done."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from torch import Tensor

from tgflow.cuda.machine import Machine, Mark

GivenUp: TypeAlias = "tuple[Tensor, Tensor | None]"
"""Free items and their size classes, or memory and None."""


class Readers:
    """Things given up by a writer, until the kernels that were in flight are done.

    Readers on the writer's own stream are done when its next kernel begins. A reader on another
    stream first waits, on the device, for the latest publication, so only those that were launched
    before the one without a thing can reach it. Nobody ever makes the host wait. Replays of a
    captured graph are not seen here: run them on the writer's stream, or order them with it.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lock = threading.Lock()
        self._writer = machine.stream()
        self._published: Mark | None = None
        self._reading: dict[int, Mark] = {}
        self._giving: list[GivenUp] = []
        self._given_up: list[tuple[GivenUp, list[Mark]]] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Enclose the launch of a kernel that reads the store on the current stream."""
        if self._machine.capturing():
            yield
            return
        with self._lock:
            stream = self._machine.stream()
            away = stream != self._writer
            if away and self._published is not None:
                self._machine.wait(self._published)
            yield
            if away:
                self._reading[stream] = self._machine.mark()

    def wait_when_dropped(self, owner: object) -> None:
        """Have the host wait for readers on other streams when `owner` and its memory go.

        What goes is free at once for later work of the stream that it was made on, and no other.
        """
        finalizer = weakref.finalize(owner, _wait, self._machine, self._reading)
        finalizer.atexit = False  # the process's end gives all back

    def writing(self) -> None:
        """Begin to write on the current stream: behind what was written before on another."""
        with self._lock:
            stream = self._machine.stream()
            if stream != self._writer and self._published is not None:
                self._machine.wait(self._published)
            self._writer = stream

    def wait(self) -> None:
        """Let later work of the current stream begin when the readers launched so far are done.

        The host goes on. Readers launched later see what was published before this.
        """
        with self._lock:
            for stream, mark in self._reading.items():
                if stream != self._machine.stream():
                    self._machine.wait(mark)

    def give_up(self, thing: GivenUp) -> None:
        """Hand over what the state to be published next does not reach any more."""
        self._giving.append(thing)

    def published(self) -> None:
        """Note that what was launched so far on the writer's stream is a state for readers."""
        with self._lock:
            self._published = self._machine.mark()
            marks = [mark for stream, mark in self._reading.items() if stream != self._writer]
            self._given_up += [(thing, marks) for thing in self._giving]
            self._giving = []

    def collect(self) -> list[GivenUp]:
        """Return what nobody reads any more, in the order in which it was given up."""
        done = []
        with self._lock:
            while self._given_up and all(mark.query() for mark in self._given_up[0][1]):
                done.append(self._given_up.pop(0)[0])
        return done


def _wait(machine: Machine, reading: dict[int, Mark]) -> None:
    if not all(mark.query() for mark in reading.values()):
        machine.synchronize()
