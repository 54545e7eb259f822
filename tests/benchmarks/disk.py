"""A table on disk that exceeds the memory for it: planned cache, LRU, and the page cache.

A pass of gathers runs in a process of its own (`python -m benchmarks.disk PASS`), in a cgroup that
limits the memory of the process and of the page cache that it fills.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.results import skipped
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, PowerLaw
from tgflow.cache import CachedTable, cached
from tgflow.graph import TemporalGraph
from tgflow.plan import Loader, NegativeSampler, Plan
from tgflow.tables import FeatureTable
from tgflow.tables.table import Table

BATCHES = {172: 200, 768: 100}
"""Events of a batch by the floats of a row: features of edits or posts, and embeddings of texts."""
TABLE_BYTES, BUDGET = 4 << 30, 1 << 30
READ_SHARE = 0.7
"""Share of the newest events, whose batches an epoch reads within the time limit."""
LIMIT_S, QUICK_LIMIT_S = 100.0, 20.0
"""Seconds of a pass; slower methods are compared by the batches that they read until then."""
TARGETS = {"lru": 1.3, "mmap": 1.8}
METHODS = ("belady", "lru", "mmap")
HEADER_BYTES, CHECKSUM_BYTES = 4096, 4
SHARES = {"belady": 0.6, "lru": 0.85}
"""Share of the budget that the cache takes; buffers, batches and the plan take the rest."""
HEADROOM = 1.1
"""Share of the budget that the process may hold beyond what it held before the pass."""
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass reads, and how."""

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
    group: str | None = None
    """Folder of the memory cgroup to enter, if there is one."""
    is_v2: bool = False


@dataclass(slots=True)
class PassTimes:
    """Measurements of a pass."""

    seconds: list[float]
    """When each batch was there; as many as there was time for."""
    rows: list[int]
    """Rows that had been read by then."""
    hits: int = 0
    misses: int = 0
    bytes: int | None = None
    """Peak beyond what was held before the pass; None without a limit."""


def run(options: Options) -> list[Row]:
    """Read the same batches through each method, each in a process with the same limit."""
    return [row for dim in BATCHES for row in rows_of(dim, options)]


def rows_of(dim: int, options: Options) -> list[Row]:
    """Compare the methods on rows of `dim` floats."""
    num_rows, batch = TABLE_BYTES // (4 * dim), BATCHES[dim]
    num_read = int(num_rows * READ_SHARE)
    limit = QUICK_LIMIT_S if options.quick else LIMIT_S
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # /tmp is often memory
        path = Path(folder) / "x.rows"
        options.say(f"disk: writing {num_rows:,} rows of {dim} floats")
        write_table(path, num_rows, dim)
        taken = {}
        for name in METHODS:
            options.say(f"disk: {name}")
            task = Pass(name, str(path), num_rows, num_read, dim, batch, BUDGET, limit)
            taken[name] = measured(task)
    params: Params = {
        "table": f"{TABLE_BYTES >> 20} MiB",
        "budget": f"{BUDGET >> 20} MiB",
        "floats": dim,
        "batch": batch,
        "batches of an epoch": -(-num_read // batch),
    }
    return list(compared(taken, params, BUDGET))


def write_table(path: Path, num_rows: int, dim: int) -> None:
    """Write a table of normal rows."""
    table = FeatureTable(dim, placement="disk", path=path)
    piece = torch.randn(1 << 13, dim, generator=torch.Generator().manual_seed(0))
    for start in range(0, num_rows, len(piece)):
        table.append(piece[: num_rows - start])
    table.close()


def measured(task: Pass) -> PassTimes | None:
    """Run a pass in a process of its own; None where the page cache cannot be limited."""
    file = os.open(task.path, os.O_RDONLY)  # the page cache of one process serves the next
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    try:
        with memory_group(f"tgflow-bench-{os.getpid()}") as group:
            return _child(replace(task, group=str(group.path), is_v2=group.is_v2))
    except NoLimit:
        return None if task.method == "mmap" else _child(task)


def _child(task: Pass) -> PassTimes:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.disk", json.dumps(asdict(task))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise RuntimeError(
            f"the pass with {task.method} failed with {ran.returncode}:\n{ran.stderr}"
        )
    return PassTimes(**json.loads(ran.stdout.splitlines()[-1]))


def compared(taken: dict[str, PassTimes | None], params: Params, budget: int) -> Iterator[Row]:
    """Yield the speed of the planned cache beside the others, their misses and their memory."""
    belady = taken["belady"]
    assert belady is not None
    for name, ratio in TARGETS.items():
        named, other = {**params, "against": name}, taken[name]
        if other is None:
            reason = "needs a memory cgroup: run as root"
            yield skipped("table on disk", "rows/s", named, reason)
            continue
        num = min(len(belady.rows), len(other.rows))
        rows, seconds = belady.rows[num - 1], (belady.seconds[num - 1], other.seconds[num - 1])
        named["batches"] = num
        yield Row(
            "table on disk", rows / seconds[0], "rows/s", named, None, rows / seconds[1], ratio
        )
    for name, each in taken.items():
        named = {**params, "policy": name}
        if each is not None and each.misses:
            share = each.misses / (each.hits + each.misses)
            yield Row("table on disk: misses", share, "of the rows", named)
        if each is not None and each.bytes is not None:
            yield Row("table on disk: memory", each.bytes / budget, "of the budget", named, 1.1)


class NoLimit(RuntimeError):
    """The system lets this process limit no memory; the message has the reason."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A memory cgroup (version 1 or 2) beneath that of this process."""

    path: Path
    is_v2: bool

    def enter(self) -> None:
        """Move this process in."""
        self._write("cgroup.procs", os.getpid())

    def limit(self, num_bytes: int) -> None:
        """Limit the group's memory, page cache included."""
        self._write("memory.max" if self.is_v2 else "memory.limit_in_bytes", num_bytes)

    def settle(self) -> int:
        """Drop the page cache, begin a new peak, and return the bytes held."""
        if not self.is_v2:
            self._write("memory.force_empty", 0)
            self._write("memory.max_usage_in_bytes", 0)
        return self._read("memory.current" if self.is_v2 else "memory.usage_in_bytes")

    @property
    def peak(self) -> int:
        """The most bytes that the group has held."""
        return self._read("memory.peak" if self.is_v2 else "memory.max_usage_in_bytes")

    def _write(self, name: str, value: int) -> None:
        (self.path / name).write_text(str(value), encoding="ascii")

    def _read(self, name: str) -> int:
        return int((self.path / name).read_text(encoding="ascii"))


@contextmanager
def memory_group(name: str) -> Iterator[MemoryGroup]:
    """Make a group beneath that of this process, and remove it when its processes have ended.

    Raises:
        NoLimit: If there is no memory controller, or this process may not use it.
    """
    group = None
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    for number, controllers, path in (line.split(":", 2) for line in lines):
        if "memory" in controllers.split(","):
            group = MemoryGroup(CGROUPS / "memory" / path.lstrip("/") / name, is_v2=False)
        elif number == "0" and (CGROUPS / "cgroup.controllers").exists():
            group = group or MemoryGroup(CGROUPS / path.lstrip("/") / name, is_v2=True)
    if group is None:
        raise NoLimit("this system has no memory cgroups")
    try:
        group.path.mkdir()
    except OSError as error:
        raise NoLimit(f"no memory cgroup can be made: {error.strerror}") from error
    try:
        yield group
    finally:
        group.path.rmdir()


class MappedRows:
    """A table's file mapped into memory."""

    dtype = torch.float32

    def __init__(self, path: str, num_rows: int, dim: int) -> None:
        stride = dim + CHECKSUM_BYTES // 4
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_RANDOM)  # reading ahead of random rows reads 30 times too much
        with warnings.catch_warnings(action="ignore"):  # the buffer is read-only
            floats = torch.frombuffer(mapped, dtype=torch.float32, offset=HEADER_BYTES)
        self._rows = floats[: num_rows * stride].view(num_rows, stride)[:, :dim]
        self.dim = dim

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return rows; row 0 for an id of -1."""
        return torch.index_select(self._rows, 0, ids.clamp(min=0), out=out)


def take(task: Pass) -> PassTimes:
    """Prepare the batches of a pass once, as a TGN reads them: one hop of 10."""
    group = None if task.group is None else MemoryGroup(Path(task.group), task.is_v2)
    if group is not None:
        group.enter()
    graph = TemporalGraph.from_events(PowerLaw(task.num_events // 10).read(0, task.num_events))
    plan = Plan(
        graph,
        seed=0,
        batch_size=task.batch,
        fanouts=(10,),
        strategy="recent",
        visibility="event",
        negatives=NegativeSampler(),
        start=task.num_events - task.num_read,
        with_memory=True,
    )
    plan.pending(0, 0)
    held = 0
    if group is not None:
        held = group.settle()
        group.limit(held + int(HEADROOM * task.budget))
    table = open_table(task)
    graph.edge_x = table  # type: ignore[assignment]  # a plan only gathers from a mapped file
    taken, started, num_rows = PassTimes([], []), time.perf_counter(), 0
    for batch in Loader(plan):
        assert batch.x is not None
        tables = {id(block.edge_table): block.edge_table for block in batch.blocks}
        num_rows += len(batch.x) + sum(len(x) for x in tables.values() if x is not None)
        taken.rows.append(num_rows)
        taken.seconds.append(time.perf_counter() - started)
        if taken.seconds[-1] > task.limit_s:
            break
    if isinstance(table, CachedTable):
        taken.hits, taken.misses = table.counters.hits, table.counters.misses
    taken.bytes = None if group is None else group.peak - held
    return taken


def open_table(task: Pass) -> Table | MappedRows:
    """Return the table, read by the method of the pass."""
    if task.method == "mmap":
        return MappedRows(task.path, task.num_events, task.dim)
    table = FeatureTable(task.dim, placement="disk", path=task.path)
    size = int(SHARES[task.method] * task.budget)
    return cached(table, bytes=size, policy="belady" if task.method == "belady" else "lru")


if __name__ == "__main__":
    print(json.dumps(asdict(take(Pass(**json.loads(sys.argv[1]))))))
