"""What a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Tensors = dict[str, Tensor]

VOLATILE = frozenset({"reorder", "cache_edge_x", "cache_node_x"})
"""Sections that depend on when data came or was asked for, not on the data alone."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is saved: tensors by section and name, and what JSON can hold beside them.

    While a `CheckpointWriter` has it, nobody may change its tensors.
    """

    sections: dict[str, Tensors]
    """Sections such as "model", "optimizer" and "state"; names match [a-z0-9_-]."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Configuration, seeds and counters: dicts, lists, strings, numbers, bools, None."""
    sealed: dict[str, Callable[[], Tensors]] = field(default_factory=dict)
    """More sections, whose content under a name never changes in a run: a store writes it once,
    and links it into the checkpoints that follow. Called only when it must be written. Of a loaded
    checkpoint, whose files were all found right, they are read when they are called."""
    outside: list[Callable[[], None]] = field(default_factory=list)
    """Make durable what it refers to and does not hold; called before it is complete."""
    volatile: Set[str] = VOLATILE
    """Sections left out of the manifest's `state_sha256`, by which two runs are compared."""
