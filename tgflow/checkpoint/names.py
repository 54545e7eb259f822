"""Names of the checkpoints in a directory, and the errors of checkpoints; without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used. The message says why, and the way out."""


class CheckpointDamaged(CheckpointError):
    """It is missing, incomplete, or not what was written."""


class CheckpointVersion(CheckpointError):
    """Its format is not one this tgflow reads; most likely a newer one wrote it."""


class UntrustedCheckpoint(CheckpointError):
    """It holds what tgflow never writes: someone made it so. Nothing of it was used."""


class NoValidCheckpoint(CheckpointError):
    """There are checkpoints, but all are damaged; to start afresh is for a person to decide."""


class RowsLost(CheckpointError):
    """A file of rows that it refers to does not have what it had; nothing in it was changed."""


class CheckpointNotCommitted(OSError):
    """The disk refused; everything is as it was."""


class CheckpointDurabilityUnknown(OSError):
    """The checkpoint is in place, but a crash of the machine may undo that."""


_NAME = re.compile(r"ckpt-(\d{12})(?:-(\d{1,6}))?")


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A checkpoint's directory, by its name."""

    step: int
    attempt: int
    path: Path


def checkpoint_name(step: int, attempt: int = 0) -> str:
    """Return the name of a checkpoint's directory."""
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
            raise UntrustedCheckpoint(f"{path} is a link, or no directory")
        found.append(Entry(int(name[1]), int(name[2] or 0), path))
    return sorted(found)
