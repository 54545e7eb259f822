"""A temporal graph whose neighborhoods are on a GPU; its log stays in host memory."""

from __future__ import annotations

import ctypes
import threading

import torch
from torch import Tensor

from tgflow import _core
from tgflow.cuda import sampling
from tgflow.cuda.device import Device, translate_oom
from tgflow.cuda.mutation import Edits
from tgflow.cuda.store import DeviceStats, DeviceStore
from tgflow.cuda.structs import NeighborRows, Queries, SamplerArgs
from tgflow.units import INT64_MAX


class DeviceGraph:
    """As `_core.TemporalGraph`, with the same methods, arguments, answers and errors.

    Columns are addresses of host memory; those of queries and answers are of device memory.
    """

    def __init__(self, direction: _core.Direction, budget: int, gpu: Device) -> None:
        self._gpu = gpu
        self._host = _core.TemporalGraph(direction, INT64_MAX)  # checks events and keeps the log
        self._directed = direction == _core.Direction.directed
        limit = None if budget == INT64_MAX else budget
        self._store = DeviceStore(gpu, self._directed, limit)
        self._writing = threading.Lock()

    @property
    def log(self) -> _core.EventLog:
        """The log."""
        return self._host.log

    @property
    def position(self) -> int:
        """Events in the snapshot."""
        return self._store.position

    def check(self, src: int, dst: int, t: int, label: int, size: int, may_be_late: bool) -> None:
        """Raise ValueError if the events cannot follow."""
        self._host.check(src, dst, t, label, size, may_be_late)

    @translate_oom
    def append(self, src: int, dst: int, t: int, label: int, size: int, may_be_late: bool) -> int:
        """Check and add events, all or none. Waits once for the device, to learn what they need."""
        with self._writing:
            self._host.check(src, dst, t, label, size, may_be_late)
            first = len(self.log)
            columns = self._column(src, size), self._column(dst, size), self._column(t, size)
            types = self._column(label, size) if label else None
            late = size > 0 and int(_host_column(t, 1)[0]) < self.log.clock
            if late:
                eid = torch.arange(first, first + size)
                self._store.reserve_edits(self._edits(*columns, eid, puts_in=True), types)
            else:
                self._store.reserve(*columns, types)
            self._host.record(src, dst, t, label, size)
            if late:
                self._store.commit_change(first + size)
            else:
                self._store.commit(first + size)
            return first

    def remove(self, eid: int, size: int) -> int:
        """Remove events; return how many entries are gone. Synchronizes, as all changes do."""
        with self._writing:
            self.log.check_eids(eid, size)
            return self._remove(_host_column(eid, size).clone())

    def remove_pair(self, src: int, dst: int) -> int:
        """Remove every event from `src` to `dst`, and back unless directed. Reads the whole log."""
        with self._writing:
            sources, targets = self._ends()
            chosen = (sources == src) & (targets == dst)
            if not self._directed:
                chosen |= (sources == dst) & (targets == src)
            return self._remove(chosen.nonzero().view(-1))

    def remove_node(self, v: int) -> int:
        """Remove every event of a node. Reads the whole log."""
        with self._writing:
            sources, targets = self._ends()
            return self._remove(((sources == v) | (targets == v)).nonzero().view(-1))

    def retain(self, min_t: int, max_count: int) -> int:
        """Forget entries before `min_t`, and each node's oldest beyond `max_count`."""
        with self._writing:
            gained = self._store.reserve_retention(min_t, max_count)
            self._store.commit_change(self.position)
            return -gained

    def compact(self) -> None:
        """Give up replaced pasts, and give memory back."""
        with self._writing:
            self._store.compact()

    def move_down(self, num_bytes: int) -> None:
        """Move the oldest blocks to the host until the device has at most `num_bytes` of blocks."""
        with self._writing:
            self._store.move_down(num_bytes)

    def stats(self) -> DeviceStats:
        """Count what the store holds. Synchronizes."""
        with self._writing:
            return self._store.stats()

    def sample_neighbors(
        self,
        sampler: _core.Sampler,
        nodes: int,
        t: int,
        before: int,
        before_all: int,
        size: int,
        k: int,
        out_nodes: int,
        out_t: int,
        out_eid: int,
        out_count: int,
    ) -> None:
        """Answer queries on torch's current stream; does not synchronize."""
        if sampler.types:
            self._host.check_types()
        spec = SamplerArgs(sampler.strategy.value, sampler.key, sampler.span, sampler.types)
        queries = Queries(nodes, t, before, before_all, size)
        rows = NeighborRows(out_nodes, out_t, out_eid, out_count, k)
        with self._store.readers.reading():
            sampling.sample(self._gpu.kernels, self._store.snapshot, spec, queries, rows)

    def _remove(self, eids: Tensor) -> int:
        t = torch.from_numpy(self.log.columns(0, len(self.log))[2])
        src, dst = self._ends()
        edits = self._edits(src[eids], dst[eids], t[eids], eids, puts_in=False)
        gained = self._store.reserve_edits(edits)
        self._store.commit_change(self.position)
        return -gained

    def _edits(self, src: Tensor, dst: Tensor, t: Tensor, eid: Tensor, *, puts_in: bool) -> Edits:
        src, dst, t, eid = (column.to(self._gpu.device) for column in (src, dst, t, eid))
        return Edits.of_events(src, dst, t, eid, puts_in=puts_in, directed=self._directed)

    def _ends(self) -> tuple[Tensor, Tensor]:
        src, dst, _, _ = self.log.columns(0, len(self.log))
        return torch.from_numpy(src), torch.from_numpy(dst)

    def _column(self, address: int, size: int) -> Tensor:
        return _host_column(address, size).to(self._gpu.device)


def _host_column(address: int, size: int) -> Tensor:
    """Return the int64 column at `address`: not a copy."""
    if size == 0:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer((ctypes.c_int64 * size).from_address(address), dtype=torch.int64)
