"""The processes of one attempt: a rank each, started together and ended together."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tgflow.distributed.launch import MEETING_VARIABLE

_PAUSE = 0.02
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class RankProcesses:
    """Runs a command once for each rank of one host; entered, the ranks run.

    Each is in a session of its own, so that signals of a terminal reach only whoever supervises,
    and is sent SIGTERM if that process dies. Left, all of them have ended.

    Args:
        command: Program and arguments, the same for all ranks.
        nproc: How many ranks.
        environ: What they find in the environment, beside who they are and where they meet.
    """

    def __init__(self, command: Sequence[str], nproc: int, environ: Mapping[str, str]) -> None:
        self._command = command
        self._nproc = nproc
        self._environ = environ
        self._meeting = tempfile.TemporaryDirectory(prefix="tgflow-ranks-")
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for rank in range(self._nproc):
                self._children.append(self._start(rank))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.signal(signal.SIGKILL)
        for child in self._children:
            child.wait()
        self._meeting.cleanup()

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        numbers = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self._nproc,
            "LOCAL_WORLD_SIZE": self._nproc,
        }
        return subprocess.Popen(
            self._command,
            env={
                **self._environ,
                **{name: str(number) for name, number in numbers.items()},
                MEETING_VARIABLE: self._meeting.name,
            },
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  # this process has one thread
        )

    @property
    def codes(self) -> list[int | None]:
        """The exit code of each rank, negative for a signal; None while it runs."""
        return [child.poll() for child in self._children]

    def wait(self, seconds: float) -> bool:
        """Wait for at most this long until all have ended; return whether they have."""
        deadline = time.monotonic() + seconds
        while None in self.codes:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE)
        return True

    def signal(self, number: int, rank: int | None = None) -> None:
        """Send a signal to a rank, or to all of them, that still run."""
        for child in self._children if rank is None else [self._children[rank]]:
            if child.poll() is None:
                child.send_signal(number)


def _end_with_parent() -> None:
    """Have the system send SIGTERM to this process when the one that started it dies."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
