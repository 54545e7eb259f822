"""The graph backend in host memory, on the core's store."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from tgflow.base.peers import Shard
from tgflow.base.units import INT64_MAX
from tgflow.graph import _native
from tgflow.graph.events import EventBatch
from tgflow.graph.query import Neighbors, Queries
from tgflow.graph.strategies import Sampler

_EVERYTHING = Shard()


class HostGraph:
    """A graph backend over `_core.TemporalGraph`; `DeviceGraph` is its GPU counterpart."""

    device = torch.device("cpu")
    gpu = None

    def __init__(
        self,
        direction: str,
        budget: int | None = None,
        shard: Shard = _EVERYTHING,
        first: int = 0,
        folder: str | None = None,
    ) -> None:
        parts, budget = shard.parts, INT64_MAX if budget is None else budget
        kept = budget, parts.start, len(parts), first, folder
        self.native = _native.TemporalGraph(_native.DIRECTIONS[direction], *kept)
        """The core's graph, for other code of the core."""
        graph = self.native
        self.log = graph.log
        self.check_relations, self.stats = graph.check_relations, graph.stats
        self.remove, self.remove_pair = graph.remove, graph.remove_pair
        self.retain, self.compact, self.forget = graph.retain, graph.compact, graph.forget

    @property
    def position(self) -> int:
        return self.native.position

    def check(self, events: EventBatch, allow_late: bool) -> None:
        self.native.check(*_native.columns(events), allow_late)

    def append(self, events: EventBatch, allow_late: bool) -> int:
        return self.native.append(*_native.columns(events), allow_late)

    def stage(
        self, events: EventBatch, allow_late: bool = True, rows: Tensor | None = None
    ) -> tuple[int, int]:
        """Check events and write them to the log's memory, unseen, for a store that is elsewhere.

        `record` then adds them to the log only. `rows` also gets their columns, int64 `[C, B]`.
        Returns the largest source and the largest destination, -1 without events.
        """
        return self.native.stage(*_native.columns(events), allow_late, rows)

    def record(self) -> int:
        """Add the staged events to the log, and return the first one's position."""
        return self.native.record()

    def sample(self, sampler: Sampler, queries: Queries, out: Neighbors) -> None:
        each, limit = _native.cut_offs(queries.as_of)
        strategy = _native.NATIVE_STRATEGIES[sampler.native_strategy]
        drawn = strategy, queries.key, sampler.span or 1, queries.relations
        asked = queries.nodes, queries.t, each, limit, queries.rows, queries.since
        given = *drawn, *asked, out.nodes, out.t, out.eid, out.count
        _native.sample_neighbors(self.native, *given)

    def reading(self) -> AbstractContextManager[None]:
        return nullcontext()
