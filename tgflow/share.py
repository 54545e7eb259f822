"""Slices of a batch: what one of several that share a batch computes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from tgflow.batch import Batch, BatchSlice, HostEvents
from tgflow.schedule import rows_of_slice


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Some slices of a batch, next to each other, and what the host knows of the whole batch.

    A trainer takes it for the batch: numbers, places and host events are those of the whole.
    """

    slices: tuple[Batch, ...]
    """In order, at least one; of a batch with fewer rows than slices some have no rows."""
    numbers: range
    """Of `slices`."""
    num_slices: int
    """Of the whole batch."""
    epoch: int
    index: int
    num_new: int
    """New events of the whole batch; the rest of its rows is replayed."""
    num_fallbacks: int
    """As `Batch.num_fallbacks`, of the whole batch."""
    host: HostEvents
    """Of the whole batch."""
    fetch: Callable[[], None] | None = None
    """Brings what the slices read of a state that is spread over ranks, see `SpreadState.ask`: to
    be called before they are computed. None: nothing is to be fetched."""

    @classmethod
    def of(cls, slices: Sequence[Batch]) -> Self:
        """Return the share of the given slices of one batch, or of a batch as its only slice.

        Raises:
            ValueError: If there are none, or they are not next to each other in one batch.
        """
        if not slices:
            raise ValueError("a share has at least one slice, got none")
        first = slices[0]
        whole: Batch | BatchSlice = first
        numbers, num_slices = range(1), 1
        if first.slice is not None:
            whole, start, num_slices = first.slice, first.slice.number, first.slice.num_slices
            numbers = range(start, start + len(slices))
        found = [(s.epoch, s.index, 0 if s.slice is None else s.slice.number) for s in slices]
        if found != [(first.epoch, first.index, number) for number in numbers]:
            raise ValueError(
                "a share has slices of one batch, next to each other; got those of "
                f"(epoch, index, number) {', '.join(map(str, found))}"
            )
        return cls(
            tuple(slices), numbers, num_slices, first.epoch, first.index,
            whole.num_new, whole.num_fallbacks, whole.host,
        )  # fmt: skip

    def __len__(self) -> int:
        """Return how many rows the whole batch has."""
        return len(self.host.eid)

    def rows_of(self, number: int) -> range:
        """Return which rows of the whole batch a slice has, also one that is not of this share."""
        return rows_of_slice(number, self.num_slices, len(self))

    def new_rows_of(self, number: int) -> range:
        """Return which of them are new events."""
        rows = self.rows_of(number)
        return range(min(rows.start, self.num_new), min(rows.stop, self.num_new))

    def computed(self) -> Iterator[tuple[int, Batch]]:
        """Yield the numbers and slices of those that have rows; the first one, if none has."""
        pairs = [*zip(self.numbers, self.slices, strict=True)]
        filled = [pair for pair in pairs if len(pair[1])]
        return iter(filled or pairs[:1])


AnyBatch = Batch | Share
"""A batch that is computed whole, or the slices of it that are computed here."""
