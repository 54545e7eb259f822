"""The contents of a checkpoint, and the errors of reading and writing one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tgflow.describe import described
from tgflow.peers import Shard


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


Tensors = dict[str, Tensor]


_OF_PART = re.compile(r".+-p\d\d")


def part_section(name: str, part: int) -> str:
    """Return the name of the section that has what `name` is of a part of ids."""
    return f"{name}-p{part:02d}"


def is_of_part(section: str) -> bool:
    """Return whether `part_section` gives such a name."""
    return _OF_PART.fullmatch(section) is not None


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
    """Sections that ranks other than 0 write: this is a `RankCheckpoint`."""
    unread: dict[str, Callable[[], Tensors]] = field(default_factory=dict)
    """Of a loaded checkpoint, whose files were all found right, the sections of parts of ids: they
    are read when they are called, as a rank may not have the memory for those of all ranks."""

    def _facts(self) -> dict[str, object]:
        tensors = [x for section in self.sections.values() for x in section.values()]
        return {
            **{name: self.meta[name] for name in ("trainer", "position") if name in self.meta},
            "sections": sorted({*self.sections, *self.sealed, *self.unread}),
            "num_tensors": len(tensors),
            "num_bytes": sum(x.nbytes for x in tensors),
        }

    def put(self, name: str, tensors: Tensors, *, volatile: bool = False) -> None:
        """Add a section, as `SectionWriter.put`."""
        self.sections[name] = tensors
        self._add_volatile(name, volatile)

    def put_part(
        self, name: str, part: int, make: Callable[[], Tensors], *, volatile: bool = False
    ) -> None:
        """Add the section of a part of ids, as `SectionWriter.put_part`."""
        self.put(part_section(name, part), make(), volatile=volatile)

    def put_sealed(
        self,
        name: str,
        make: Callable[[], Tensors],
        *,
        turn: int = 0,
        part: int | None = None,
        volatile: bool = False,
    ) -> None:
        """Add a section whose content under this name never changes in a run."""
        self.sealed[name] = make
        self._add_volatile(name, volatile)

    def _add_volatile(self, name: str, volatile: bool) -> None:
        if volatile:
            self.volatile.add(name)

    def note(self, name: str, value: Any) -> None:
        """Add to `meta`."""
        self.meta[name] = value

    def sync_before(self, make_durable: Callable[[], None]) -> None:
        """Have `make_durable` called before the checkpoint is complete."""
        self.outside.append(make_durable)

    def get(self, name: str) -> Tensors:
        """Return a section, sealed or not; a sealed one is read now, and so is one of a part.

        Raises:
            KeyError: If there is none of that name.
        """
        make = self.sealed.get(name, self.unread.get(name))
        return self.sections[name] if make is None else make()


@described
@dataclass(frozen=True, slots=True)
class RankCheckpoint(Checkpoint):
    """What one rank writes of a checkpoint: a writer of sections that keeps what is its own.

    It keeps the parts of ids that the rank owns, and other sealed sections in turn; rank 0 has all
    else, the notes among it. All ranks know the names of what others than rank 0 keep.
    """

    shard: Shard = field(default_factory=Shard)
    """Which rank it is, of how many."""

    def put(self, name: str, tensors: Tensors, *, volatile: bool = False) -> None:
        """Keep a section, at rank 0. See `SectionWriter.put`."""
        if self._is_own(name, 0, volatile=volatile):
            self.sections[name] = tensors

    def put_part(
        self, name: str, part: int, make: Callable[[], Tensors], *, volatile: bool = False
    ) -> None:
        """Keep the section of a part of ids, at its owner. See `SectionWriter.put_part`."""
        section = part_section(name, part)
        if self._is_own(section, self.shard.owner(part), volatile=volatile):
            self.sections[section] = make()

    def put_sealed(
        self,
        name: str,
        make: Callable[[], Tensors],
        *,
        turn: int = 0,
        part: int | None = None,
        volatile: bool = False,
    ) -> None:
        """Keep a section that never changes, if its part is this rank's, or it is its turn."""
        rank = turn % self.shard.world if part is None else self.shard.owner(part)
        if self._is_own(name, rank, volatile=volatile):
            self.sealed[name] = make

    def _is_own(self, name: str, rank: int, *, volatile: bool) -> bool:
        self._add_volatile(name, volatile)
        if rank > 0:
            self.elsewhere.add(name)
        return rank == self.shard.rank
