"""Exclusive lock on a run directory, released when the process ends for any reason."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from tgflow.durable.errors import Locked

MAX_NOTE_BYTES = 4096


class RunLock:
    """Holds the lock on `path` until `release`, or until the process ends.

    The file is never removed: otherwise two processes could lock two files of one name.

    Args:
        path: The lock file, such as run/.lock; created if missing.

    Raises:
        Locked: If another process, or another `RunLock` of this one, holds it.
        OSError: If the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd: int | None = os.open(self.path, flags, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.pread(self._fd, MAX_NOTE_BYTES, 0))
            self.release()
            raise Locked(
                f"{self.path.parent} is in use by {holder}; wait for it to end, stop it, or choose "
                "another run directory"
            ) from None
        note = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(note).encode(), 0)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _holder(note: bytes) -> str:
    try:
        holder = json.loads(note)
        pid, host, since = int(holder["pid"]), holder["host"], holder["since"]
    except (ValueError, LookupError, TypeError):
        return "another process"
    return f"process {pid} on {host!s:.80}, since {since!s:.40}"
