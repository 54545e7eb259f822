"""Checkpoints: named tensors and plain JSON in a directory that is whole or absent.

A checkpoint is a directory with one `.safetensors` file per section and a `manifest.json` that
names each file's size and SHA-256 and carries its own. It is written beside its target and renamed
into place; reading checks every digest before anything is parsed. Nothing in it can run code.

`checkpoint.py` holds the contents, `parts.py` what a model, optimizer and ids save, `directory.py`
the files of one checkpoint, `store.py` the checkpoints of a run, `ranks.py` those of many ranks.
"""

from tgflow.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointDamaged,
    CheckpointDurabilityUnknown,
    CheckpointError,
    CheckpointNotCommitted,
    CheckpointVersion,
    NoValidCheckpoint,
    RowsLost,
    Tensors,
    UntrustedCheckpoint,
)
from tgflow.checkpoint.directory import load, read_manifest, save
from tgflow.checkpoint.store import (
    CheckpointStore,
    CheckpointWriter,
    Entry,
    WriterStats,
    list_checkpoints,
)
from tgflow.checkpoint.tensors import check_like

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
