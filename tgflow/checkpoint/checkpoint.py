"""Contents of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tgflow.base.describe import described
from tgflow.base.peers import Shard

Tensors = dict[str, Tensor]


OF_PART = re.compile(r".+-p\d\d")
"""Section names of id partitions."""


def part_section(name: str, part: int) -> str:
    """Return the name of the section of `name` for one partition of ids."""
    return f"{name}-p{part:02d}"


@described
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Contents of a checkpoint: tensors by section and name, and JSON metadata.

    Each `Component` saves itself to it. While a `CheckpointWriter` holds it, its tensors must not
    change.

    Example:
        >>> sections = {"model": {"weight": torch.ones(2)}}
        >>> checkpoint = tg.checkpoint.Checkpoint(sections, {"epoch": 3})
        >>> checkpoint.get("model")["weight"].tolist()
        [1.0, 1.0]
    """

    sections: dict[str, Tensors]
    """Sections such as "model", "optimizer" and "state"; names match [a-z0-9_-]."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Configuration, seeds and counters: dicts, lists, strings, numbers, bools, None."""
    sealed: dict[str, Callable[[], Tensors]] = field(default_factory=dict)
    """Further sections, whose content under a name never changes in a run: a store writes each
    once, and links it into later checkpoints. Called only when it must be written. In a loaded
    checkpoint with all files verified, calling one reads it."""
    outside: list[Callable[[], None]] = field(default_factory=list)
    """Makes external data that it refers to durable; called before the checkpoint is committed."""
    volatile: set[str] = field(default_factory=set)
    """Sections that depend on when data arrived or was requested, not on the data alone, or that
    exist only where no file holds feature rows. They are excluded from the manifest's
    `state_sha256`, which is used to compare two runs."""
    elsewhere: set[str] = field(default_factory=set)
    """Sections written by ranks other than 0."""
    later: dict[str, Callable[[], Tensors]] = field(default_factory=dict)
    """Sections that are made when they are written, by one thread. In a loaded checkpoint with all
    files verified, those of id partitions: calling one reads it, as a rank may lack the memory for
    those of all ranks."""
    copies_later: bool = False
    """Whether `put` keeps functions for `later`, so that a training on a CPU hardly stops."""
    shard: Shard = field(default_factory=Shard)
    """Rank and number of ranks: a rank saves its own id partitions and, in turn, other sealed
    sections; rank 0 saves everything else. All ranks list the names in `elsewhere`."""
    committed: list[Callable[[Path], None]] = field(default_factory=list)
    """Called by a `CheckpointWriter` with its directory, once it is on disk."""
    path: Path | None = None
    """The directory that it was read from."""
    prefix: str = ""
    """Prefix of the names of all sections, for instance for one of several models."""

    def _facts(self) -> dict[str, object]:
        tensors = [x for section in self.sections.values() for x in section.values()]
        return {
            **{name: self.meta[name] for name in ("trainer", "position") if name in self.meta},
            "sections": sorted({*self.sections, *self.sealed, *self.later}),
            "num_tensors": len(tensors),
            "num_bytes": sum(x.nbytes for x in tensors),
        }

    def prefixed(self, prefix: str, meta: dict[str, Any]) -> Checkpoint:
        """Return a view with a prefix for section names, and its own `meta`."""
        return replace(self, prefix=self.prefix + prefix, meta=meta)

    def put(
        self, name: str, tensors: Tensors | Callable[[], Tensors], *, volatile: bool = False
    ) -> None:
        """Add a section, saved by rank 0; its tensors must not change afterwards.

        Args:
            name: Matches [a-z0-9_-], and must be unique.
            tensors: Tensors by name; or a function that returns them as of now, on any thread.
            volatile: Whether to exclude it from `state_sha256`; see the field `volatile`.
        """
        if self._is_own(name, 0, volatile=volatile):
            self._add(self.prefix + name, tensors)

    def _add(self, section: str, tensors: Tensors | Callable[[], Tensors]) -> None:
        if not callable(tensors):
            self.sections[section] = tensors
        elif self.copies_later:
            self.later[section] = tensors
        else:
            self.sections[section] = tensors()

    def put_part(self, name: str, part: int, make: Callable[[], Tensors]) -> None:
        """Add the section `part_section(name, part)` of one of the id `PARTS`."""
        section = part_section(name, part)
        if self._is_own(section, self.shard.owner(part)):
            self._add(self.prefix + section, make)

    def put_sealed(
        self, name: str, make: Callable[[], Tensors], *, turn: int = 0, volatile: bool = False
    ) -> None:
        """Add a section, as `put`, whose content under this name never changes in a run.

        `make` returns the tensors; it is called only when they must be written, on any thread.
        `turn` is its index among sections of its kind, which ranks save in turn.
        """
        if self._is_own(name, turn % self.shard.world, volatile=volatile):
            self.sealed[self.prefix + name] = make

    def _is_own(self, name: str, rank: int, *, volatile: bool = False) -> bool:
        if volatile:
            self.volatile.add(self.prefix + name)
        if rank > 0:
            self.elsewhere.add(self.prefix + name)
        return rank == self.shard.rank

    def note(self, name: str, value: Any) -> None:
        """Add a JSON-serializable value to `meta`."""
        self.meta[name] = value

    def get(self, name: str) -> Tensors:
        """Return a section; sealed sections and those of id partitions are read now."""
        name = self.prefix + name
        make = self.sealed.get(name, self.later.get(name))
        return self.sections[name] if make is None else make()


class Component:
    """Part of a training or of a run that checkpoints hold; the defaults do nothing.

    Checkpoints call `changed`, `save` and `saved`. A run calls `report` after the last save, and
    `close` at its end; its components that observe micro-batches are callbacks as well.
    """

    def changed(self) -> bool:
        """Whether a checkpoint would differ from the newest one although no event arrived."""
        return False

    def save(self, writer: Checkpoint) -> None:
        """Save the current state; later changes do not alter the saved copy."""

    def saved(self) -> None:
        """Called once the checkpoint of the latest `save` is on disk."""

    def load(self, reader: Checkpoint) -> None:
        """Restore the saved state, unless the component was opened with it.

        Raises:
            KeyError: If a section is missing.
            ValueError: If the saved state is invalid, or of another kind.
        """

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        """Return final reports by name; may write them too."""
        return {}

    def close(self) -> None:
        """Release all resources."""
