"""The contents of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from tgflow.describe import described
from tgflow.peers import Shard

Tensors = dict[str, Tensor]


OF_PART = re.compile(r".+-p\d\d")
"""Names of sections of parts of ids."""


def part_section(name: str, part: int) -> str:
    """Return the name of the section that has what `name` is of a part of ids."""
    return f"{name}-p{part:02d}"


@described
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is saved: tensors by section and name, and what JSON can hold beside them.

    Parts are saved to it and loaded from it (see `tgflow.checkpoint.parts`). While a
    `CheckpointWriter` has it, nobody may change its tensors.

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
    """More sections, whose content under a name never changes in a run: a store writes it once,
    and links it into the checkpoints that follow. Called only when it must be written. Of a loaded
    checkpoint, whose files were all found right, they are read when they are called."""
    outside: list[Callable[[], None]] = field(default_factory=list)
    """Make durable what it refers to and does not hold; called before it is complete."""
    volatile: set[str] = field(default_factory=set)
    """Sections that depend on when data came or was asked for, not on the data alone, or that are
    there only where rows of features are in no file. They are left out of the manifest's
    `state_sha256`, by which two runs are compared."""
    elsewhere: set[str] = field(default_factory=set)
    """Sections that ranks other than 0 write."""
    unread: dict[str, Callable[[], Tensors]] = field(default_factory=dict)
    """Of a loaded checkpoint, whose files were all found right, the sections of parts of ids: they
    are read when they are called, as a rank may not have the memory for those of all ranks."""
    shard: Shard = field(default_factory=Shard)
    """Which rank saves this, of how many: it keeps the parts of ids that it owns and its turns of
    other sealed sections, rank 0 all else. All ranks have the names in `elsewhere`."""
    prefix: str = ""
    """Before the name of each section that is put or got, as for one of several models."""

    def _facts(self) -> dict[str, object]:
        tensors = [x for section in self.sections.values() for x in section.values()]
        return {
            **{name: self.meta[name] for name in ("trainer", "position") if name in self.meta},
            "sections": sorted({*self.sections, *self.sealed, *self.unread}),
            "num_tensors": len(tensors),
            "num_bytes": sum(x.nbytes for x in tensors),
        }

    def prefixed(self, prefix: str, meta: dict[str, Any]) -> Checkpoint:
        """Return a view with a prefix before the names of sections, and its own `meta`."""
        return replace(self, prefix=self.prefix + prefix, meta=meta)

    def put(self, name: str, tensors: Tensors, *, volatile: bool = False) -> None:
        """Add a section; its tensors must not change from now on. Rank 0 keeps it.

        Args:
            name: Matches [a-z0-9_-], and is no other section's.
            tensors: By name.
            volatile: Whether it belongs to `volatile`.
        """
        if self._is_own(name, 0, volatile=volatile):
            self.sections[self.prefix + name] = tensors

    def put_part(self, name: str, part: int, make: Callable[[], Tensors]) -> None:
        """Add the section `part_section(name, part)` of one of the `PARTS` of ids."""
        section = part_section(name, part)
        if self._is_own(section, self.shard.owner(part)):
            self.sections[self.prefix + section] = make()

    def put_sealed(
        self,
        name: str,
        make: Callable[[], Tensors],
        *,
        turn: int = 0,
        volatile: bool = False,
    ) -> None:
        """Add a section whose content under this name never changes in a run.

        Args:
            name: As `put`.
            make: Returns the tensors; called only when they must be written, on any thread.
            turn: Which of its kind it is: ranks keep them in turns.
            volatile: As `put`.
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
        """Add to `meta` a value that JSON can hold."""
        self.meta[name] = value

    def get(self, name: str) -> Tensors:
        """Return a section, sealed or not; a sealed one is read now, and so is one of a part.

        Raises:
            KeyError: If there is none of that name.
        """
        name = self.prefix + name
        make = self.sealed.get(name, self.unread.get(name))
        return self.sections[name] if make is None else make()
