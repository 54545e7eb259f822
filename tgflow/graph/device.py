"""The graph backend with neighborhoods on a GPU; the log stays in host memory."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor

from tgflow.base.choices import Direction
from tgflow.base.peers import Shard
from tgflow.base.units import INT64_MAX
from tgflow.cuda import sampling
from tgflow.cuda.device import Device, translate_oom
from tgflow.cuda.store import DeviceStore, StoreCounts
from tgflow.cuda.store_writes import Edits
from tgflow.graph import _native
from tgflow.graph.events import EventBatch
from tgflow.graph.host import HostGraph
from tgflow.graph.query import Neighbors, Queries
from tgflow.graph.strategies import Sampler


class DeviceGraph:
    """A graph backend over a `DeviceStore`; see `HostGraph`."""

    def __init__(
        self, direction: Direction, budget: int | None, gpu: Device, shard: Shard, first: int = 0
    ) -> None:
        self.gpu = gpu
        self.device = gpu.device
        self._host = HostGraph(direction, first=first)  # validates events and stores the log
        self.log = self._host.log
        self._directed = direction == "directed"
        self._store = DeviceStore(gpu, self._directed, budget, shard, first)
        self.readers = self._store.readers
        """Those of the neighborhoods."""
        self._writing = threading.Lock()
        self.position = first
        """Events that samplers launched from now on see."""

    def check(self, events: EventBatch, allow_late: bool) -> None:
        """Raise ValueError if the events cannot be appended."""
        self._host.check(events, allow_late)

    @translate_oom
    def append(self, events: EventBatch, allow_late: bool) -> int:
        """Check and add events, all or none; waits for the device where `DeviceStore` does."""
        with self._writing:
            first, end = len(self.log), len(self.log) + len(events)
            src, dst, t, relations = events.src, events.dst, events.t, events.relation
            if len(events) == 0:
                return first
            if allow_late and int(t[0]) < self.log.clock:
                self._host.stage(events)
                eid, directed = torch.arange(first, end), self._directed
                edits = Edits.of_events(src, dst, t, eid, puts_in=True, directed=directed)
                self._store.reserve_edits(edits, relations)
                self._host.record()
                self._store.commit_change(end)
            else:
                stage = partial(self._host.stage, events, allow_late)
                self._store.reserve(len(events), stage, relations is not None)
                self._host.record()
                self._store.commit(end)
            self.position = end
            return first

    def sample(self, sampler: Sampler, queries: Queries, out: Neighbors) -> None:
        """Sample neighbors on torch's current stream; does not synchronize."""
        if queries.relations is not None:
            self._host.check_relations()
        each, limit = _native.cut_offs(queries.as_of)
        if not self.gpu.is_capturing():
            limit = min(limit, self.position)
        drawn = sampler.native_strategy, queries.key, sampler.span or 1, queries.relations
        since = self.log.since(queries.since)
        asked = queries.nodes, queries.t, each, limit, queries.rows, since
        params = sampling.params_address(queries.params, self.device)
        with self.readers.reading():
            sampling.sample(
                self.gpu,
                self._store.snapshot,
                sampling.sampler_args(*drawn),
                sampling.queries(*asked),
                sampling.neighbor_rows(out.nodes, out.t, out.eid, out.count),
                params,
            )

    def reading(self) -> AbstractContextManager[None]:
        return self.readers.reading()

    def remove(self, eid: Tensor) -> int:
        """Remove events. Synchronizes, as all changes do."""
        with self._writing:
            self.log.check_eids(eid)
            return self._remove(eid)

    def remove_pair(self, src: int, dst: int) -> int:
        with self._writing:
            sources, targets, _ = self._columns()
            chosen = (sources == src) & (targets == dst)
            if not self._directed:
                chosen |= (sources == dst) & (targets == src)
            return self._remove(self.log.first + chosen.nonzero().view(-1))

    def retain(self, min_t: int, max_count: int) -> int:
        """Remove neighbors before `min_t`, and each node's oldest beyond `max_count`."""
        with self._writing:
            gained = self._store.reserve_retention(min_t, max_count)
            self._store.commit_change(self.position)
            return -gained

    def compact(self) -> None:
        with self._writing:
            self._store.compact()

    def forget(self, first: int, log_first: int) -> None:
        with self._writing:
            t = self.log.since(first)[0]
            self._store.reserve_retention(t, INT64_MAX)
            self._store.commit_change(self.position)
            self._store.compact(self.log.position(t))
            self.log.forget(log_first, first)

    def stats(self) -> StoreCounts:
        """Return the size of the store. Synchronizes."""
        with self._writing:
            return self._store.stats()

    def _remove(self, eid: Tensor) -> int:
        src, dst, t = (column[eid - self.log.first] for column in self._columns())
        edits = Edits.of_events(src, dst, t, eid, puts_in=False, directed=self._directed)
        gained = self._store.reserve_edits(edits)
        self._store.commit_change(self.position)
        return -gained

    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        src, dst, t, _ = self.log.columns(self.log.first, len(self.log))
        return torch.from_numpy(src), torch.from_numpy(dst), torch.from_numpy(t)
