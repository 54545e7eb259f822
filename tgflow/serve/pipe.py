"""Requests that a replica passes on to the run that it answers for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from tgflow.serve.questions import Refused


class Pipe:
    """Requests of a replica to the run that it answers for, one at a time; nothing is pickled."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def ask(self, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        try:
            with self._lock:
                self._connection.send_bytes(body)
                status, _, answer = self._connection.recv_bytes().partition(b" ")
        except (EOFError, OSError):
            raise Refused(503, "the run has ended, and takes no labels") from None
        return int(status), answer

    def answer(self, make: Callable[[bytes], tuple[int, bytes]]) -> None:
        """Answer requests until the other end is closed."""
        with self._connection, suppress(EOFError, OSError):
            while True:
                status, body = make(self._connection.recv_bytes())
                self._connection.send_bytes(b"%d %s" % (status, body))
