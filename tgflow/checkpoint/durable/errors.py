"""Errors of crash-safe files."""

from __future__ import annotations

import errno
import os

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error codes of a full disk or an exceeded quota."""
WAY_OUT = "bring the file back from a copy, or start over with another --out"
"""Fix for a damaged log."""


class DiskFull(OSError):
    """Raised when the disk is full; nothing was changed. Free some space, or use a larger disk."""

    def __init__(self, what: str, path: os.PathLike[str] | str) -> None:
        super().__init__(errno.ENOSPC, what, os.fspath(path))


class LogCorrupt(RuntimeError):
    """Raised when synced events of the log are missing or damaged; a crash cannot cause this."""


class Locked(RuntimeError):
    """Raised when another process holds the lock."""


class Fenced(Locked):
    """Raised when another machine has taken over the lock of this process."""


class LogVersion(RuntimeError):
    """Raised when another tgflow version, most likely a newer one, wrote the log."""
