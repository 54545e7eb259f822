"""A gateway as the process that started it sees it."""

from __future__ import annotations

import subprocess
import sys
from multiprocessing import Pipe
from socket import socket

from tgflow.serve.link import Begin, End, Link


class GatewayProcess:
    """A process that takes requests, see `Gateway`, started where it is made."""

    def __init__(self, listener: socket, begin: Begin) -> None:
        ours, theirs = Pipe()
        with theirs:
            inherited = listener.fileno(), theirs.fileno()
            # -P: what lies in the working directory is no module of ours
            words = [sys.executable, "-P", "-m", "tgflow.serve.gateway", *map(str, inherited)]
            self._process = subprocess.Popen(
                words,
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the process that has the model
            )
        self.link = Link(ours)
        """Gives `EOFError` once it has ended."""
        self.link.send(begin)

    def end(self) -> None:
        """Have it take no more requests, and end once those that there are have answers."""
        self.link.send(End())

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self._process.kill()

    def wait(self) -> int:
        """Return the exit status of what has ended, or ends; minus the signal that killed it."""
        code = self._process.wait()
        self.link.close()
        return code
