"""What one of several ranks writes of a checkpoint that they save together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tgflow.checkpoint.content import Checkpoint, Tensors, part_section
from tgflow.describe import described
from tgflow.peers import Shard


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
