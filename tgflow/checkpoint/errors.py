"""What goes wrong with checkpoints: with what is read, and with writing them."""

from __future__ import annotations


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
