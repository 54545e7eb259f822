"""Queries of neighborhoods, and their results."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.base.describe import described
from tgflow.base.free_memory import prefer_huge_pages
from tgflow.graph.events import NO_NODE, NUM_RELATIONS


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """Neighborhoods to look up; tensors are contiguous and on the graph's device."""

    nodes: Tensor
    """int64 `[Q]`."""
    t: Tensor
    """int64 `[Q]`: ticks."""
    as_of: int | Tensor | None = None
    """See only events at log positions below this, one for all or int64 `[Q]`; None: all."""
    since: int = 0
    """First log position of the horizon: earlier events are not seen."""
    key: int = 0
    """Key of random draws, in [0, 2**64)."""
    relations: Tensor | None = None
    """int64 `[1024]`: a bit per relation, whether it counts; None: all do."""
    params: Tensor | None = None
    """On a GPU int64 `[5]`: the cut-off for all, the key, the number of queries in use, and the
    time and position at which the horizon begins, which kernels read at run time, so that a
    captured call can be replayed with others. Further queries have no neighbors. None: as above."""
    rows: Tensor | None = None
    """int64 `[Q]`: row of each query in a larger call, which keys its draws; None: its row here."""


@described
@dataclass(slots=True, eq=False)
class Neighbors:
    """Up to `k` neighbors of each query, newest first.

    Missing slots come last and hold `NO_NODE`, time 0 and event -1.

    Example:
        >>> found = tg.sampling.recent_neighbors(graph, torch.tensor([0]), torch.tensor([40]), k=3)
        >>> found.nodes.tolist(), found.t.tolist(), found.count.tolist()
        ([[3, 2, -1]], [[30, 10, 0]], [2])
    """

    nodes: Tensor
    """int64 `[Q, k]`."""
    t: Tensor
    """int64 `[Q, k]`: ticks."""
    eid: Tensor
    """int64 `[Q, k]`: log positions."""
    count: Tensor
    """int32 `[Q]`: filled slots of each row."""

    @classmethod
    def empty(cls, size: int, k: int, device: torch.device | str = "cpu") -> Neighbors:
        """Return uninitialized results for `size` queries, for a sampler's `out=`."""
        count = torch.empty(size, dtype=torch.int32, device=device)
        if count.is_cpu:  # in one allocation, of which malloc keeps the pages for the next
            columns = torch.empty(3, size, k, dtype=torch.int64)
            prefer_huge_pages(columns)
            return cls(columns[0], columns[1], columns[2], count)
        nodes = torch.empty(size, k, dtype=torch.int64, device=device)
        return cls(nodes, torch.empty_like(nodes), torch.empty_like(nodes), count)

    @property
    def mask(self) -> Tensor:
        """Bool `[Q, k]`: whether the slot holds a neighbor."""
        return self.nodes != NO_NODE


def relation_bits(relations: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a bit per relation, whether it is one of `relations`: int64 `[1024]` on `device`."""
    bits = 0
    for kept in relations:
        if not 0 <= kept < NUM_RELATIONS:
            raise ValueError(f"relations must be in [0, {NUM_RELATIONS - 1}], got {kept}")
        bits |= 1 << kept
    words = bytearray(bits.to_bytes(NUM_RELATIONS // 8, "little"))
    return torch.frombuffer(words, dtype=torch.int64).to(device)
