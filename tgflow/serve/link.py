"""Messages between the process with the model and the HTTP process."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple, TypeAlias

from tgflow.serve.guard import Limits
from tgflow.serve.questions import Question, Refused

PathOfRun: TypeAlias = Literal["/healthz", "/metrics"]
"""Path of the run's state."""
What: TypeAlias = Question | PathOfRun


class Begin(NamedTuple):
    """To HTTP, first message: the configuration to serve."""

    name: str
    token: str | None
    limits: Limits


class End(NamedTuple):
    """To HTTP: accept no more requests, and end once those in progress have answers."""


class Ready(NamedTuple):
    """To the model: requests are accepted from here on."""


class Call(NamedTuple):
    """To the model: a question, or a request for the run's state."""

    number: int
    what: What


class Cancel(NamedTuple):
    """To the model: the client no longer waits for an answer."""

    number: int


class Warned(NamedTuple):
    """To the model: a line for its log."""

    text: str


class Reply(NamedTuple):
    """To HTTP: an answer, or the error."""

    number: int
    answer: bytes | Refused


class Link:
    """One end of a connection between two processes. Any thread may send; one thread receives."""

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
        """Return the next message, None if there is none within a few seconds."""
        try:
            if seconds is not None and not self._connection.poll(seconds):
                return None
            return self._connection.recv()
        except OSError:
            raise EOFError from None

    def close(self) -> None:
        """Close the connection, which the other process detects."""
        with self._lock:
            self._connection.close()
