"""What a graph needs of wherever its neighborhoods are: host memory, a GPU, another machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph._native import Log
from tgflow.graph.query import Neighbors, Queries
from tgflow.graph.stats import StoreCounts
from tgflow.sampler import Sampler


class GraphBackend(Protocol):
    """Neighborhoods and the log behind them. One thread writes while any number sample.

    A write is seen by samplers in whole or not at all. Changes of the past (`remove` and on) are
    seen by cut-offs from `position` on; earlier cut-offs see the graph as it was, until `compact`.
    Events arrive with contiguous columns on the CPU. All methods that write raise MemoryError where
    a tier has no room, and have changed nothing then.
    """

    @property
    def device(self) -> torch.device:
        """Where queries and answers are."""
        ...

    @property
    def gpu(self) -> Device | None:
        """The GPU that holds the neighborhoods; None: they are in host memory."""
        ...

    @property
    def log(self) -> Log:
        """The events' columns, in host memory."""
        ...

    @property
    def position(self) -> int:
        """Events that samplers see."""
        ...

    def check(self, events: EventBatch, allow_late: bool) -> None:
        """Raise ValueError if `append` would."""
        ...

    def append(self, events: EventBatch, allow_late: bool) -> int:
        """Add events, all or none, and return the first one's position.

        Raises:
            ValueError: If they cannot follow.
        """
        ...

    def sample(self, sampler: Sampler, queries: Queries, out: Neighbors) -> None:
        """Write the neighbors of `queries` to `out`, whose shape says how many each.

        Raises:
            ValueError: If `queries.types` are given and an event has no label in [0, 65535].
        """
        ...

    def reading(self) -> AbstractContextManager[None]:
        """Enclose what reads the neighborhoods on the current stream unseen: replays."""
        ...

    def remove(self, eid: Tensor) -> int:
        """Remove events, int64 `[N]` on the CPU; return how many neighbors are gone.

        Raises:
            IndexError: If the log does not hold one of them.
        """
        ...

    def remove_pair(self, src: int, dst: int) -> int:
        """Remove every event from `src` to `dst`, and back unless directed."""
        ...

    def remove_node(self, node: int) -> int:
        """Remove every event of `node`."""
        ...

    def retain(self, min_t: int, max_count: int) -> int:
        """Forget neighbors before `min_t`, and each node's oldest beyond `max_count`."""
        ...

    def compact(self) -> None:
        """Drop what only cut-offs before the latest changes see, and give memory back."""
        ...

    def move_down(self, num_bytes: int) -> None:
        """Move the oldest blocks to the host until the device has at most `num_bytes` of blocks."""
        ...

    def stats(self) -> StoreCounts:
        """Count what the store holds. Waits for a write in progress."""
        ...
