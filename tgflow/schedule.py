"""Static schedule: which rank computes which rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from tgflow.peers import Shard, WorldError


@dataclass(frozen=True, slots=True)
class SliceSchedule:
    """The slices of every batch, dealt to the ranks in order: rank = slice * world // slices.

    What a slice holds does not depend on the world, so neither does what is computed from it.

    Args:
        slices: How many a batch is cut into, at least 1.
        world: How many ranks share them.

    Raises:
        WorldError: If there are more ranks than slices, or than parts.
        ValueError: If `slices` is below 1.
    """

    slices: int = 1
    world: int = 1

    def __post_init__(self) -> None:
        if self.slices < 1:
            raise ValueError(f"slices must be at least 1, got {self.slices}")
        Shard(0, self.world)
        if self.world > self.slices:
            of = "1 slice" if self.slices == 1 else f"{self.slices} slices"
            raise WorldError(
                f"a batch has {of}, so at most {self.slices} of {self.world} ranks can share it; "
                f"start {self.slices}, or set slices={self.world}"
            )

    def slices_of(self, rank: int) -> range:
        """Return the slices that a rank computes, in this order: never none."""
        first, stop = (-(-each * self.slices // self.world) for each in (rank, rank + 1))
        return range(first, stop)

    @property
    def most(self) -> int:
        """Slices of the rank that computes most of a batch."""
        return max(len(self.slices_of(rank)) for rank in range(self.world))


def rows_of_slice(number: int, slices: int, num_rows: int) -> range:
    """Return the rows of slice `number` of a batch of `num_rows`, new ones, then replayed ones.

    Sizes of slices differ by one at most; of a batch with fewer rows than slices some are empty.
    """
    return range(num_rows * number // slices, num_rows * (number + 1) // slices)
