"""Checkpoint directory names and exceptions, without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


class CheckpointError(RuntimeError):
    """Base class of errors of unusable checkpoints. The message has the cause and the fix."""


class CheckpointDamaged(CheckpointError):
    """Raised when a checkpoint is missing, incomplete, or damaged."""


class CheckpointVersion(CheckpointError):
    """Raised for an unsupported format, most likely written by a newer tgflow."""


class UntrustedCheckpoint(CheckpointError):
    """Raised for content that tgflow never writes: it was forged. Nothing of it was used."""


class NoValidCheckpoint(CheckpointError):
    """Raised when all checkpoints are damaged; restarting from scratch is the user's decision."""


class RowsLost(CheckpointError):
    """Raised when a file lacks rows that the checkpoint refers to; nothing in it was changed."""


class CheckpointNotCommitted(OSError):
    """Raised on a disk error; nothing was changed."""


class CheckpointDurabilityUnknown(OSError):
    """Raised when the checkpoint is in place, but may not survive a crash of the machine."""


_NAME = re.compile(r"ckpt-(\d{12})(?:-(\d{1,6}))?")


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """Directory of a checkpoint, parsed from its name."""

    step: int
    attempt: int
    path: Path


def checkpoint_name(step: int, attempt: int = 0) -> str:
    """Return the directory name of a checkpoint."""
    return f"ckpt-{step:012d}" + (f"-{attempt}" if attempt else "")


def list_checkpoints(directory: Path) -> list[Entry]:
    """Return the checkpoints in a directory, oldest first, valid or not; none if it is missing.

    Raises:
        UntrustedCheckpoint: If one is a link, or not a directory.
    """
    found = []
    for path in directory.iterdir() if directory.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        if path.is_symlink() or not path.is_dir():
            raise UntrustedCheckpoint(f"{path} is a link, or not a directory")
        found.append(Entry(int(name[1]), int(name[2] or 0), path))
    return sorted(found)
