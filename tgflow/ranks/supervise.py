"""Starts the ranks of one host and restarts them depending on their exit codes: `--nproc`.

torch's `elastic_launch` is not used: it sends SIGTERM to all ranks as soon as one fails, so that
the others cannot report which, and restarts for every exit code, without a pause.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Self

from tgflow.base.peers import Shard, WorldError
from tgflow.ranks.launch import MEETING_VARIABLE, read_launch, require_linux

_PAUSE = 0.02
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class RankProcesses:
    """Runs a command once for each rank of one host, within a context."""

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
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
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
            preexec_fn=partial(_end_with_parent, os.getpid()),  # noqa: PLW1509  # one thread
        )

    @property
    def codes(self) -> list[int | None]:
        """The exit code of each rank, negative for a signal; None while it runs."""
        return [child.poll() for child in self._children]

    def wait(self, seconds: float) -> bool:
        """Wait at most this long for all to end; return whether they have."""
        deadline = time.monotonic() + seconds
        while None in self.codes and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        return None not in self.codes

    def signal(self, number: int, rank: int | None = None) -> None:
        """Send a signal to one rank, or to all of them, if still running."""
        for child in self._children if rank is None else [self._children[rank]]:
            if child.poll() is None:
                child.send_signal(number)


def _end_with_parent(parent: int) -> None:
    """Make the system kill this process when its parent dies; a checkpoint is newest then."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has died before
            os._exit(128 + signal.SIGKILL)


UNREACHABLE = 75
RESTARTED = (71, 74, UNREACHABLE)
"""Exit codes of `tgflow` that another attempt may avoid: memory, I/O, unreachable peers. With any
other code a rank has failed for good."""
GRACE_SECONDS = 10.0
"""Seconds for the other ranks to end by themselves after one has ended: waiting ranks detect it at
once, hanging ones do not."""
_LONGEST_PAUSE = 60.0


def supervise(
    command: Callable[[], Sequence[str]],
    nproc: int,
    *,
    max_restarts: int = 10,
    keeps: bool = True,
    progress: Callable[[], object] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Run a command as `nproc` ranks, 1 to 64, until they are done; restart all if one is lost.

    If a rank ends by a signal, or with a code of `RESTARTED`, all are restarted together, after 1
    s, 2 s, 4 s and so on up to 60 s, at most `max_restarts` times without other `progress`; with
    another code all end at once. The first SIGTERM or SIGINT is passed to rank 0, which ends all;
    to all of them if the command `keeps` nothing; a second one kills them. Blocks; call it from the
    main thread of a single-threaded process. `command` is called before each start: a later one may
    resume.

    Returns 0 if rank 0 returned it, or a signal ended the ranks and their work was saved; else the
    ranks' exit code, 128 + n for signal n. Raises WorldError if `nproc` is out of range, this
    process is a rank itself, or this is not Linux.
    """
    environ = os.environ if environ is None else environ
    Shard(0, nproc)
    launch = None if "WORLD_SIZE" in environ else read_launch(environ)
    if "WORLD_SIZE" in environ or (launch is not None and launch.world > 1):
        raise WorldError(
            f"{nproc} ranks (nproc) cannot be started here: a launcher has started this "
            "process as a rank; leave one of the two out"
        )
    require_linux()
    restarts, reached = 0, progress()
    with _Stop(to=0 if keeps else None) as stop:
        while True:
            end = _run_once(command(), nproc, environ, stop)
            now = progress()
            if now != reached:
                restarts, reached = 0, now
            if stop.asked or not end.may_be_restarted or restarts == max_restarts:
                break
            seconds = backoff_seconds(restarts)
            restarts += 1
            say(f"{end.text}; all ranks restart in {seconds:g} s ({restarts} of {max_restarts})")
            if stop.wait(seconds):
                return 0
    if end.text:
        say(f"{end.text}; {restarts} restarts achieved nothing" if restarts else end.text)
    return end.code


def backoff_seconds(restarts: int) -> float:
    """Return the seconds to wait before the next start, after `restarts` in a row."""
    return min(2.0**restarts, _LONGEST_PAUSE)


@dataclass(frozen=True, slots=True)
class _End:
    """Outcome of an attempt: exit code, whether to retry, and why, in words."""

    code: int
    may_be_restarted: bool
    text: str = ""


def _run_once(command: Sequence[str], nproc: int, environ: Mapping[str, str], stop: _Stop) -> _End:
    deadline = None
    with RankProcesses(command, nproc, environ) as ranks:
        while not ranks.wait(_PAUSE) and not stop.insists:
            stop.forward(ranks)
            decided = ranks.codes[0] is not None or any(ranks.codes)  # rank 0 is done, or one lost
            if deadline is None and decided:
                deadline = time.monotonic() + GRACE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                break
        codes = ranks.codes
    if stop.insists:
        return _End(128 + stop.asked, False, "all ranks are killed")
    if stop.asked and stop.to is None and codes[0] != 0:
        name = signal.Signals(stop.asked).name
        return _End(128 + stop.asked, False, f"all ranks have ended by {name}, and nothing is kept")
    return _outcome(codes, is_stopping=stop.asked != 0)


def _outcome(codes: Sequence[int | None], *, is_stopping: bool) -> _End:
    """Return the outcome of the exit codes of all ranks; None is a rank that did not end."""
    for rank, code in enumerate(codes):
        if code is not None and code > 0 and code not in RESTARTED:
            return _End(code, False, f"rank {rank} ended with {code}")
    was_stopped = is_stopping and codes[0] in (-signal.SIGTERM, -signal.SIGINT)
    if codes[0] == 0 or was_stopped:
        return _End(0, False)
    rank = min(range(len(codes)), key=lambda each: _precedence(codes[each]))
    code = codes[rank]
    if code is None:
        return _End(UNREACHABLE, True, f"rank {rank} hung")
    if code < 0:
        return _End(128 - code, True, f"rank {rank} was killed by {signal.Signals(-code).name}")
    return _End(code, True, f"rank {rank} ended with {code}")


def _precedence(code: int | None) -> int:
    """Return the sort key of a rank's end: the cause comes before its consequences."""
    if code is None:
        return 2
    if code == 0:
        return 4
    return 0 if code < 0 else 3 if code == UNREACHABLE else 1


TOGETHER_SECONDS = 1.0
"""Signals this close count as one: GNU timeout signals its child, and then the process group."""


class _Stop:
    """Context manager that passes on the first SIGTERM or SIGINT, and kills on a second one."""

    def __init__(self, to: int | None) -> None:
        self.to = to
        self.asked = 0
        """The first signal, or 0."""
        self.insists = False
        """Whether there was a second one, after more than `TOGETHER_SECONDS`."""
        self._asked_at = 0.0
        self._was_forwarded = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.asked:
            self.asked, self._asked_at = number, now
        self.insists = now - self._asked_at > TOGETHER_SECONDS

    def forward(self, ranks: RankProcesses) -> None:
        """Forward the first signal once."""
        if self.asked and not self._was_forwarded:
            ranks.signal(signal.SIGTERM, rank=self.to)
            self._was_forwarded = True

    def wait(self, seconds: float) -> bool:
        """Wait for this long, or until there is a signal; return whether there is one."""
        deadline = time.monotonic() + seconds
        while not self.asked and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        return self.asked != 0
