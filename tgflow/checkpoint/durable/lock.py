"""Exclusive lease on a run directory, released when the process ends for any reason."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tgflow.checkpoint.durable.errors import Fenced, Locked
from tgflow.checkpoint.durable.fs import writing

MAX_NOTE_BYTES = 4096
_NOTE_BYTES = 512
LEASE_SECONDS = 20.0
"""Seconds without a renewal after which a holder on another machine has lost the lock."""
_RENEWALS = 10
"""Renewals per lease."""


class RunLock(AbstractContextManager["RunLock"]):
    """Holds the lock on `path` until `release`, or until the process ends.

    Processes of one machine exclude each other by `flock`. A lock left by another machine is waited
    for: on a network file system `flock` may outlive a lost host, or not reach other hosts at all.
    The holder renews its lease by the file's modification time; without a renewal for the time of a
    lease, the lock is taken over with a larger `token`. `check` then fails for the previous holder,
    and the token in log and checkpoints sets apart what it may still write.

    The file is never removed: otherwise two processes could lock two files of one name.

    Args:
        lease: Seconds of a lease; the same for all processes.
        say: Called with one line before waiting.

    Raises:
        Locked: If another process, or another `RunLock` of this one, holds it.
        OSError: If the file cannot be created.
    """

    def __init__(
        self,
        path: Path,
        *,
        lease: float = LEASE_SECONDS,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.path = Path(path)
        self.token = 0
        """Number of holders, so far, that have lost the lock to another machine."""
        self._lease = lease
        self._checked_at = time.monotonic()
        self._own: dict[str, Any] = {}
        self._end = threading.Event()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with writing():
            self._fd: int | None = os.open(self.path, flags, 0o644)
        try:
            self._take(say)
        except BaseException:
            self._close()
            raise
        self._renewing = threading.Thread(target=self._renew, name="tgflow-lease", daemon=True)
        self._renewing.start()

    def _take(self, say: Callable[[str], None]) -> None:
        assert self._fd is not None
        is_mine, note = self._flock(), self._note()
        machine = note.get("machine")
        self.token = read_token(note)
        if machine not in (None, this_machine()):
            say(f"{self.path.parent} was in use by {holder(note)}; waiting {self._lease:g} s")
            self._wait_for_lease(note, is_mine)
            self.token += 1
        elif not is_mine:
            raise self._locked(note)
        self._own = holder_note(self.token, machine=this_machine())
        self._write(self._own)
        if machine not in (None, this_machine()):
            time.sleep(self._lease / _RENEWALS)  # another one may have waited as well
            self.check(now=True)

    def _flock(self) -> bool:
        assert self._fd is not None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _wait_for_lease(self, note: dict[str, Any], is_mine: bool) -> None:
        """Wait until the holder of another machine has lost or left its lock; raises Locked."""
        renewed, until = self._renewed_at(), time.monotonic() + self._lease
        while time.monotonic() < until:
            time.sleep(self._lease / _RENEWALS)
            now = self._note()
            if "machine" not in now:  # released
                return
            if now != note or self._renewed_at() != renewed:
                raise self._locked(now)
            if not is_mine and self._flock():  # it excluded both machines, and its holder has ended
                return

    def _locked(self, note: dict[str, Any]) -> Locked:
        return Locked(
            f"{self.path.parent} is in use by {holder(note)}; wait for it to end, stop it, or "
            "choose another run directory"
        )

    def check(self, *, now: bool = False) -> None:
        """Raise Fenced if another machine has taken the lock over; reads the file once a second."""
        if self._fd is None or (not now and time.monotonic() - self._checked_at < 1.0):
            return
        note = self._note()
        if "machine" in note and note != self._own and read_token(note) >= self.token:
            raise Fenced(
                f"{self.path.parent} was taken over by {holder(note)}, as this process did not "
                f"renew its lock for {self._lease:g} s; nothing more is written"
            )
        self._checked_at = time.monotonic()

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._fd is not None:
            self._end.set()
            self._renewing.join(self._lease)
            if self._note() == self._own:
                self._write({"token": self.token})
            self._close()

    def _renew(self) -> None:
        while not self._end.wait(self._lease / _RENEWALS):
            try:
                self.check(now=True)
                os.utime(self.path)
            except Fenced:
                return
            except OSError:  # a network file system is away: the lease may expire
                continue

    def _renewed_at(self) -> int:
        return os.stat(self.path).st_mtime_ns

    def _note(self) -> dict[str, Any]:
        """Return the note in the file; opened anew, as a network file system caches content."""
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            note = json.loads(os.pread(fd, MAX_NOTE_BYTES, 0) or "{}")
        except ValueError:
            note = None
        finally:
            os.close(fd)
        return note if isinstance(note, dict) else {}

    def _write(self, note: dict[str, Any]) -> None:
        assert self._fd is not None
        os.pwrite(self._fd, json.dumps(note).ljust(_NOTE_BYTES).encode(), 0)  # never partial
        os.fsync(self._fd)

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __exit__(self, *error: object) -> None:
        self.release()


def holder_note(token: int, **more: Any) -> dict[str, Any]:
    """Return the note of this process as the holder of a lease."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="microseconds"),
        "token": token,
        **more,
    }


def read_token(note: dict[str, Any]) -> int:
    """Return the token of a lock's note or of a checkpoint's manifest; 0 without one."""
    token = note.get("token")
    return token if type(token) is int and token >= 0 else 0


def this_machine() -> str:
    """Return an identifier of this start of the machine; its name if it is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def holder(note: dict[str, Any]) -> str:
    """Return who holds a lease, for messages."""
    try:
        pid, host, since = int(note["pid"]), note["host"], note["since"]
    except (ValueError, LookupError, TypeError):
        return "another process"
    return f"process {pid} on {host!s:.80}, since {since!s:.40}"
