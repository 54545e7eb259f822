"""Checkpoints: named tensors and JSON in a directory that is written atomically.

A checkpoint is a directory with one `.safetensors` file per section and a `manifest.json` with the
size and SHA-256 of each file and of itself. It is written beside its target and renamed into place;
readers verify every digest before parsing. A checkpoint cannot execute code.

`checkpoint.py` defines the contents and `Component`, `sections.py` the components of model,
optimizer and ids, `directory.py` the files of one checkpoint, `store.py` the checkpoints of a run,
`names.py` their names and errors, without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

if TYPE_CHECKING:
    from tgflow.checkpoint.checkpoint import Checkpoint as Checkpoint
    from tgflow.checkpoint.checkpoint import Component as Component
    from tgflow.checkpoint.checkpoint import Tensors as Tensors
    from tgflow.checkpoint.directory import load as load
    from tgflow.checkpoint.directory import read_manifest as read_manifest
    from tgflow.checkpoint.directory import save as save
    from tgflow.checkpoint.names import CheckpointDamaged as CheckpointDamaged
    from tgflow.checkpoint.names import CheckpointDurabilityUnknown as CheckpointDurabilityUnknown
    from tgflow.checkpoint.names import CheckpointError as CheckpointError
    from tgflow.checkpoint.names import CheckpointNotCommitted as CheckpointNotCommitted
    from tgflow.checkpoint.names import CheckpointVersion as CheckpointVersion
    from tgflow.checkpoint.names import Entry as Entry
    from tgflow.checkpoint.names import NoValidCheckpoint as NoValidCheckpoint
    from tgflow.checkpoint.names import RowsLost as RowsLost
    from tgflow.checkpoint.names import UntrustedCheckpoint as UntrustedCheckpoint
    from tgflow.checkpoint.names import list_checkpoints as list_checkpoints
    from tgflow.checkpoint.store import CheckpointStore as CheckpointStore
    from tgflow.checkpoint.store import CheckpointWriter as CheckpointWriter
    from tgflow.checkpoint.store import WriterStats as WriterStats
    from tgflow.checkpoint.tensors import check_like as check_like

__all__, __getattr__, __dir__ = lazy_names(__name__)
