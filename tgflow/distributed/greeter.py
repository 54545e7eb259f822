"""Where rank 0 answers those who look for it: with a nonce, and the port of its store."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Self

_LONGEST_ANSWER = 1024
_SECONDS = 1.0
_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class Greeting:
    """What rank 0 answers."""

    nonce: str
    store_port: int

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        return json.dumps({"tgflow": self.nonce, "store_port": self.store_port}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Return what `to_bytes` made into `data`; None if that is something else."""
        try:
            found = json.loads(data)
            return cls(str(found["tgflow"]), int(found["store_port"]))
        except (ValueError, LookupError, TypeError):
            return None


def listen(address: str, port: int, deadline: float = 0.0) -> socket.socket:
    """Return a socket that listens on this address alone.

    Args:
        address: Of an interface.
        port: 0: any; another one is tried until `deadline`, as who had it may still be ending.
        deadline: On the clock of `time.monotonic`.

    Raises:
        OSError: If it cannot be had.
    """
    while True:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(1024)
            return listener
        except OSError as error:
            listener.close()
            if port == 0:
                raise
            if time.monotonic() > deadline:
                text = f"rank 0 cannot listen on {address}:{port}: {error.strerror}"
                raise OSError(error.errno, f"{text}; choose another MASTER_PORT") from error
        time.sleep(_PAUSE)


class Greeter:
    """Answers whoever connects, in a thread of its own, until it is closed."""

    def __init__(self, listener: socket.socket, greeting: Greeting) -> None:
        self._listener = listener
        self._answer = greeting.to_bytes()
        self._is_open = True
        listener.settimeout(_PAUSE)
        self._thread = threading.Thread(target=self._run, name="greeter", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Answer nobody any more."""
        self._is_open = False
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while self._is_open:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody came, or has gone again
                continue
            with connection:
                connection.settimeout(_SECONDS)
                try:
                    connection.sendall(self._answer)
                except OSError:
                    continue


def ask(host: str, port: int) -> Greeting | None:
    """Return what a rank 0 answers there; None if nobody does within a second or two."""
    answer = b""
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            while piece := connection.recv(_LONGEST_ANSWER):
                answer += piece
                if len(answer) > _LONGEST_ANSWER:
                    return None
    except OSError:
        return None
    return Greeting.from_bytes(answer)
