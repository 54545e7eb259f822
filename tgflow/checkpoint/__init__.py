"""Checkpoints: named tensors and plain JSON in a directory that is whole or absent.

A checkpoint is a directory with one `.safetensors` file per section and a `manifest.json` that
names each file's size and SHA-256 and carries its own. It is written beside its target and renamed
into place; reading checks every digest before anything is parsed. Nothing in it can run code.
"""

from tgflow.checkpoint.content import Checkpoint, Tensors
from tgflow.checkpoint.directory import load, read_manifest, save
from tgflow.checkpoint.errors import (
    CheckpointDamaged,
    CheckpointDurabilityUnknown,
    CheckpointError,
    CheckpointNotCommitted,
    CheckpointVersion,
    NoValidCheckpoint,
    RowsLost,
    UntrustedCheckpoint,
)
from tgflow.checkpoint.store import CheckpointStore, Entry, list_checkpoints
from tgflow.checkpoint.tensors import check_like
from tgflow.checkpoint.writer import CheckpointWriter, WriterStats

__all__ = [
    "Checkpoint",
    "CheckpointDamaged",
    "CheckpointDurabilityUnknown",
    "CheckpointError",
    "CheckpointNotCommitted",
    "CheckpointStore",
    "CheckpointVersion",
    "CheckpointWriter",
    "Entry",
    "NoValidCheckpoint",
    "RowsLost",
    "Tensors",
    "UntrustedCheckpoint",
    "WriterStats",
    "check_like",
    "list_checkpoints",
    "load",
    "read_manifest",
    "save",
]
