"""Static schedule of a batch's rows over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from tgflow.peers import Shard, WorldError


@dataclass(frozen=True, slots=True)
class SliceSchedule:
    """The slices of every batch, assigned to ranks in order: rank = slice * world // slices.

    A slice's contents do not depend on the world, so neither do results.

    Args:
        slices: Slices per batch, at least 1.
        world: Number of ranks that share them.

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
        """Return the slices that a rank computes, in this order; at least one."""
        first, stop = (-(-each * self.slices // self.world) for each in (rank, rank + 1))
        return range(first, stop)

    @property
    def most(self) -> int:
        """Largest number of slices per batch of any rank."""
        return max(len(self.slices_of(rank)) for rank in range(self.world))


def rows_of_slice(number: int, slices: int, num_rows: int) -> range:
    """Return the rows of slice `number` of a batch of `num_rows`, new rows before replayed ones.

    Sizes of slices differ by at most one; some are empty if there are fewer rows than slices.
    """
    return range(num_rows * number // slices, num_rows * (number + 1) // slices)
