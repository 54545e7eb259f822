"""Neighborhoods in host memory: the core's store."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from tgflow.events import EventBatch
from tgflow.graph import _native
from tgflow.graph.query import Neighbors, Queries
from tgflow.peers import Shard
from tgflow.sampler import Sampler
from tgflow.units import INT64_MAX

_EVERYTHING = Shard()


class HostGraph:
    """A graph backend over `_core.TemporalGraph`, as `DeviceGraph` is one on a GPU."""

    device = torch.device("cpu")
    gpu = None

    def __init__(
        self, direction: str, budget: int | None = None, shard: Shard = _EVERYTHING
    ) -> None:
        self._graph = _native.Graph(
            _native.DIRECTIONS[direction],
            INT64_MAX if budget is None else budget,
            shard.parts.start,
            len(shard.parts),
        )

    @property
    def native(self) -> _native.Graph:
        """The core's graph, for what reads it there."""
        return self._graph

    @property
    def log(self) -> _native.Log:
        """The log."""
        return self._graph.log

    @property
    def position(self) -> int:
        """Events that samplers see."""
        return self._graph.position

    def check(self, events: EventBatch, allow_late: bool) -> None:
        """Raise ValueError if the events cannot follow."""
        self._graph.check(*_native.columns(events), allow_late)

    def append(self, events: EventBatch, allow_late: bool) -> int:
        """Check and add events, all or none."""
        return self._graph.append(*_native.columns(events), allow_late)

    def record(self, events: EventBatch) -> int:
        """Add checked events to the log alone, for a backend that keeps neighborhoods elsewhere."""
        return self._graph.record(*_native.columns(events))

    def check_types(self) -> None:
        """Raise ValueError unless every event has a label in [0, 65535]."""
        self._graph.check_types()

    def sample(self, sampler: Sampler, queries: Queries, out: Neighbors) -> None:
        """Answer queries on the core's threads."""
        each, limit = _native.cut_offs(queries.as_of)
        _native.sample_neighbors(
            self._graph,
            _native.NATIVE_STRATEGIES[sampler.native_strategy],
            queries.key,
            sampler.span or 1,
            queries.types,
            queries.nodes,
            queries.t,
            each,
            limit,
            queries.rows,
            out.nodes,
            out.t,
            out.eid,
            out.count,
        )

    def reading(self) -> AbstractContextManager[None]:
        """Enclose nothing: nothing is captured on the CPU."""
        return nullcontext()

    def remove(self, eid: Tensor) -> int:
        """Remove events."""
        return self._graph.remove(eid)

    def remove_pair(self, src: int, dst: int) -> int:
        """Remove every event from `src` to `dst`, and back unless directed."""
        return self._graph.remove_pair(src, dst)

    def remove_node(self, node: int) -> int:
        """Remove every event of a node. Reads the whole log."""
        return self._graph.remove_node(node)

    def retain(self, min_t: int, max_count: int) -> int:
        """Forget neighbors before `min_t`, and each node's oldest beyond `max_count`."""
        return self._graph.retain(min_t, max_count)

    def compact(self) -> None:
        """Drop what only cut-offs before the latest changes see, and give memory back."""
        self._graph.compact()

    def move_down(self, num_bytes: int) -> None:
        """Move the oldest blocks down until the upper tier has at most `num_bytes` of blocks."""
        self._graph.move_down(num_bytes)

    def stats(self) -> _native.StoreStats:
        """Count what the store holds. Waits for an append in progress."""
        return self._graph.stats()
