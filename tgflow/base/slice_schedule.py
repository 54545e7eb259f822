"""Static schedule of a batch's rows over ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.base.peers import Shard, WorldError


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


def new_rows_of_slice(number: int, slices: int, num_new: int) -> range:
    """Return the rows of slice `number` among the new ones, which are the first of a batch."""
    return range(num_new * number // slices, num_new * (number + 1) // slices)


def rows_of_slice(number: int, slices: int, num_new: int, num_rows: int) -> Tensor:
    """Return the rows of slice `number` of a batch, ascending, int64.

    Replayed rows, which come after the new ones, share few nodes with others and so cost more. They
    are dealt to the slices in turn; consecutive ones would differ in cost, as older events have
    fewer neighbors. New rows are consecutive, and share nodes. Of new rows, of replayed ones and of
    both together a slice has as many as any other, give or take one; some slices are empty if there
    are fewer rows than slices.
    """
    parts = [new_rows_of_slice(each, slices, num_new) for each in range(slices)]
    new, turns = parts[number], sorted(range(slices), key=lambda each: len(parts[each]))
    first = min(num_new + turns.index(number), num_rows)  # slices with fewer new rows come first
    return torch.cat([torch.arange(new.start, new.stop), torch.arange(first, num_rows, slices)])
