"""What goes wrong with files that must survive a crash."""

from __future__ import annotations

import errno
import os

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Codes of a disk, or of someone's share of it, that is full."""
WAY_OUT = "bring the file back from a copy, or start over with another --out"
"""What can be done about a damaged log."""


class DiskFull(OSError):
    """There is no room; nothing was changed. Make room, or move the run to a larger disk."""

    def __init__(self, what: str, path: os.PathLike[str] | str) -> None:
        super().__init__(errno.ENOSPC, what, os.fspath(path))


class LogCorrupt(RuntimeError):
    """The log lacks events, or holds damaged ones, that were on the disk: no crash does that."""


class Locked(RuntimeError):
    """Another process is writing here."""


class LogVersion(RuntimeError):
    """Another tgflow, most likely a newer one, wrote the log."""
