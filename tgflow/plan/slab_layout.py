"""A prepared batch as one piece of memory: where its parts are, and views of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class BlockPlaces(NamedTuple):
    """Where the columns of a `Block` are, in bytes; -1: it has none."""

    targets: int
    """Its rows, padding included."""
    target: int
    neighbor: int
    mask: int
    dt: int
    eid: int
    edge_row: int


class BatchPlaces(NamedTuple):
    """Where the columns of a batch are, in bytes, and how long they are; -1: it has none."""

    num_events: int
    num_new: int
    num_queries: int
    num_fallbacks: int
    eid: int
    t: int
    ends: int
    """Sources, destinations, negatives' destinations and, if they have their own, sources."""
    row: int
    """Of each of those, in the top frontier."""
    counts: int
    num_nodes: int
    nodes: int
    position: int
    num_edges: int
    """Rows of the edge table, padding included; how many of them the blocks read."""
    num_in_blocks: int
    own_row: int
    edge_ids: int
    """Of the edge table, where its rows are gathered by others."""
    edge_x: int
    x: int
    node_ids: int
    node_x: int
    counting_ns: int
    """No place: of the thread, for which it counted the past."""


class BatchLayout(NamedTuple):
    """Where all of a batch is in a piece of memory."""

    batch: BatchPlaces
    blocks: tuple[BlockPlaces, ...]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> BatchLayout:
        """Return the layout that the core gives as numbers."""
        begin, step = len(BatchPlaces._fields), len(BlockPlaces._fields)
        starts = range(begin, len(numbers), step)
        blocks = tuple(BlockPlaces(*numbers[start : start + step]) for start in starts)
        return cls(BatchPlaces(*numbers[:begin]), blocks)


class Piece:
    """A piece of memory, seen as values of each type that batches have.

    Args:
        memory: uint8 `[N]`, from the beginning of its storage on; `N` is a multiple of 8.
    """

    def __init__(self, memory: Tensor) -> None:
        self._words = memory.view(torch.int64)
        self._floats = memory.view(torch.float32)
        self._flags = memory.view(torch.bool)

    def words(self, place: int, rows: int, width: int | None = None) -> Tensor:
        """Return int64 `[rows]` or `[rows, width]` from byte `place` on, as a view."""
        return _view(self._words, place // 8, rows, width)

    def floats(self, place: int, rows: int, width: int) -> Tensor:
        """Return float32 `[rows, width]` from byte `place` on, as a view."""
        return _view(self._floats, place // 4, rows, width)

    def flags(self, place: int, rows: int, width: int) -> Tensor:
        """Return bool `[rows, width]` from byte `place` on, as a view."""
        return _view(self._flags, place, rows, width)


def _view(values: Tensor, first: int, rows: int, width: int | None) -> Tensor:
    if width is None:
        return values.as_strided((rows,), (1,), first)
    return values.as_strided((rows, width), (width, 1), first)
