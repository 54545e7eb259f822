"""One pass of gathers from a table on disk, in a process of its own, under a limit of memory."""

from __future__ import annotations

import json
import mmap
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.memory_limit import MemoryGroup
from tgflow.bench.setup import PowerLaw
from tgflow.cache import CachedTable, cached
from tgflow.graph import TemporalGraph
from tgflow.plan import Loader, NegativeSampler, Plan
from tgflow.tables import FeatureTable
from tgflow.tables.table import Table

HEADER_BYTES = 4096
CHECKSUM_BYTES = 4
SHARES = {"belady": 0.6, "lru": 0.85}
"""What of the budget the cache takes; the rest is for buffers and batches, and for what the plan
knows: a quarter of the cache."""
HEADROOM = 1.1
"""Of the budget: what the process may hold beyond what it held before the pass."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What to read, and how."""

    method: str
    """"belady", "lru", or "mmap": the file mapped into memory, and the system's page cache."""
    path: str
    num_events: int
    num_read: int
    """The newest events, whose batches are prepared."""
    dim: int
    batch: int
    """Events a batch."""
    budget: int
    limit_s: float
    """When to stop."""
    group: str | None
    """Folder of the memory cgroup to enter, if there is one."""
    is_v2: bool = False


class MappedRows:
    """A table's file as memory: what most loaders do with features that exceed it."""

    dtype = torch.float32

    def __init__(self, path: str, num_rows: int, dim: int) -> None:
        stride = dim + CHECKSUM_BYTES // 4
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_RANDOM)  # reading ahead of random rows reads 30 times too much
        with warnings.catch_warnings(action="ignore"):  # that it cannot be written to: nobody will
            floats = torch.frombuffer(mapped, dtype=torch.float32, offset=HEADER_BYTES)
        self._rows = floats[: num_rows * stride].view(num_rows, stride)[:, :dim]
        self.dim = dim

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return rows; row 0 for an id of -1."""
        return torch.index_select(self._rows, 0, ids.clamp(min=0), out=out)


@dataclass(slots=True)
class PassTimes:
    """What a pass took."""

    seconds: list[float]
    """When each batch was there; as many as there was time for."""
    rows: list[int]
    """How many rows had been read by then."""
    hits: int = 0
    misses: int = 0
    bytes: int | None = None
    """The most that was held beyond what was held before; None without a limit."""


def run(task: Pass) -> PassTimes:
    """Prepare the batches once."""
    group = None if task.group is None else MemoryGroup(Path(task.group), task.is_v2)
    if group is not None:
        group.enter()
    graph = TemporalGraph.from_events(PowerLaw(task.num_events // 10).read(0, task.num_events))
    plan = plan_of(graph, task.num_events - task.num_read, task.batch)
    plan.pending(0, 0)
    held = 0
    if group is not None:
        held = group.settle()
        group.limit(held + int(HEADROOM * task.budget))
    table = open_table(task)
    graph.edge_x = table  # type: ignore[assignment]  # a mapped file does less, and is asked less
    taken = timed(Loader(plan), task.limit_s)
    if isinstance(table, CachedTable):
        taken.hits, taken.misses = table.counters.hits, table.counters.misses
    taken.bytes = None if group is None else group.peak - held
    return taken


def timed(loader: Loader, limit_s: float) -> PassTimes:
    """Note when each batch is there, and how many rows it has read."""
    taken, started, num_rows = PassTimes([], []), time.perf_counter(), 0
    for batch in loader:
        assert batch.x is not None
        tables = {id(block.edge_table): block.edge_table for block in batch.blocks}
        num_rows += len(batch.x) + sum(len(x) for x in tables.values() if x is not None)
        taken.rows.append(num_rows)
        taken.seconds.append(time.perf_counter() - started)
        if taken.seconds[-1] > limit_s:
            break
    return taken


def plan_of(graph: TemporalGraph, start: int, batch: int) -> Plan:
    """Return a plan as a TGN has it: one hop of 10."""
    return Plan(
        graph,
        seed=0,
        batch_size=batch,
        fanouts=(10,),
        strategy="recent",
        visibility="event",
        negatives=NegativeSampler(),
        start=start,
        with_memory=True,
    )


def open_table(task: Pass) -> Table | MappedRows:
    """Return the table, read as is asked."""
    if task.method == "mmap":
        return MappedRows(task.path, task.num_events, task.dim)
    table = FeatureTable(task.dim, placement="disk", path=task.path)
    size = int(SHARES[task.method] * task.budget)
    return cached(table, bytes=size, policy="belady" if task.method == "belady" else "lru")


def asked(task: Pass) -> str:
    """Return a task as the text that this file's process takes."""
    return json.dumps(asdict(task))


if __name__ == "__main__":
    print(json.dumps(asdict(run(Pass(**json.loads(sys.argv[1]))))))
