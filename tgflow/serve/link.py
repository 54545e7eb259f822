"""What the process that has the model and the one that speaks HTTP send each other."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple, TypeAlias

from tgflow.serve.guard import Limits
from tgflow.serve.questions import Question, Refused

PathOfRun: TypeAlias = Literal["/healthz", "/metrics"]
"""Where it is said how the run is."""
What: TypeAlias = Question | PathOfRun


class Begin(NamedTuple):
    """To HTTP, first of all: what it is to serve."""

    name: str
    token: str | None
    limits: Limits


class End(NamedTuple):
    """To HTTP: to take no more requests, and to end once those that there are have answers."""


class Ready(NamedTuple):
    """To the model: requests are taken from here on."""


class Call(NamedTuple):
    """To the model: a question, or what there is to know of the run."""

    number: int
    what: What


class Cancel(NamedTuple):
    """To the model: nobody waits for an answer anymore."""

    number: int


class Warned(NamedTuple):
    """To the model: what its log is to say."""

    text: str


class Reply(NamedTuple):
    """To HTTP: what was asked for, or why there is none."""

    number: int
    answer: bytes | Refused


class Link:
    """An end of a connection between two processes. Any thread may send, and one receives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: NamedTuple) -> None:
        """Send a message; it is lost if the other process has ended."""
        with self._lock:
            try:
                self._connection.send(message)
            except OSError:
                return

    def receive(self, seconds: float | None = None) -> Any:
        """Return the next message, None if there is none in some seconds."""
        try:
            if seconds is not None and not self._connection.poll(seconds):
                return None
            return self._connection.recv()
        except OSError:
            raise EOFError from None

    def close(self) -> None:
        """Give the connection back; the other process learns that this end is gone."""
        with self._lock:
            self._connection.close()
