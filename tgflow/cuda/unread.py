"""What batches have taken of a store's memory: known when the host reads it, bounded until then."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass

from torch import Tensor

from tgflow.cuda.device import Device, StreamEvent
from tgflow.cuda.structs import Totals

_SLOTS = 64
_TOTALS_BYTES = ctypes.sizeof(Totals)


@dataclass(frozen=True, slots=True)
class Need:
    """What a batch takes of fresh memory, or takes at most."""

    entries: int
    rooms: int
    """Units of directories."""
    blocks: int


@dataclass(slots=True, eq=False)
class GivenUp:
    """What a batch has replaced: items, int64 `[N]`, and their size classes, uint8 `[N]`."""

    items: Tensor
    classes: Tensor
    count: int | None = None
    """How many there are, those of no class not counted; None: not read yet."""


@dataclass(slots=True, eq=False)
class Unread:
    """A committed batch whose totals the host has not read."""

    done: StreamEvent
    totals: Totals
    most: Need
    given_up: GivenUp
    slab: int
    """The number of the slab that its directories are in."""
    growth: int
    """Blocks that a node has got at most."""


def most_of(num_pairs: int, num_entries: int, num_blocks: int, max_blocks: int, most: int) -> Need:
    """Return what a batch takes at most.

    A run of `s` new entries takes full blocks and one that is not: a small one has room for at most
    38 entries, one that grows by copying as well, another for 9/8 of the larger of what it holds
    and an eighth of the node's entries. A directory at most doubles.

    Args:
        num_pairs: Of the batch.
        num_entries: That the store has at most.
        num_blocks: Likewise.
        max_blocks: Of a node, at most.
        most: Entries of a block at most.
    """
    full = num_pairs // most + 1
    tails = min(num_pairs * most, (num_entries + num_pairs) * 9 // 64 + num_pairs)
    linked = min(num_pairs * max_blocks, num_blocks)
    return Need(41 * num_pairs + tails, 2 * (num_pairs + full + linked), num_pairs + full)


class UnreadTotals:
    """The totals that kernels write to pinned memory, in the order of the batches.

    Attributes:
        num_entries: That the store has, at most.
        num_blocks: Likewise.
        max_blocks: Of a node, at most, but for batches whose totals were not read.
    """

    def __init__(self, gpu: Device) -> None:
        self._memory = gpu.allocate_host(_SLOTS * _TOTALS_BYTES)
        self._slots = (Totals * _SLOTS).from_address(self._memory.data_ptr())
        self._batches: deque[Unread] = deque()
        self._next = 0
        self.num_entries = self.num_blocks = self.max_blocks = 0

    def most(self, num_pairs: int, max_capacity: int) -> Need:
        """Return what the next batch takes at most, as `most_of` says."""
        max_blocks = self.max_blocks + sum(batch.growth for batch in self._batches)
        return most_of(num_pairs, self.num_entries, self.num_blocks, max_blocks, max_capacity)

    def slot(self) -> Totals:
        """Return where the next batch's totals go; waits for the oldest batch if none is free."""
        if len(self._batches) >= _SLOTS - 1:
            self._batches[0].done.synchronize()
        return self._slots[self._next]

    def add(self, batch: Unread, num_pairs: int) -> None:
        """Note a batch, whose totals go to `slot()`."""
        self._batches.append(batch)
        self._next = (self._next + 1) % _SLOTS
        self.num_entries += num_pairs
        self.num_blocks += batch.most.blocks

    def add_change(self, gained: int, num_blocks: int) -> None:
        """Note a change of the past, which added `gained` entries and `num_blocks` new blocks."""
        self.num_entries += max(gained, 0)
        self.num_blocks += num_blocks
        self.max_blocks += num_blocks

    def read(self) -> list[Unread]:
        """Return the batches that are done since the last call; never waits."""
        done: list[Unread] = []
        while self._batches and self._batches[0].done.query():
            done.append(self._batches.popleft())
            totals = done[-1].totals
            self.num_blocks -= done[-1].most.blocks - totals.blocks
            self.max_blocks = max(self.max_blocks, totals.max_blocks)
            done[-1].given_up.count = totals.given_up
        return done

    def wait(self) -> None:
        """Wait for all of them."""
        if self._batches:
            self._batches[-1].done.synchronize()
