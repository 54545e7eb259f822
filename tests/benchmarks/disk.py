"""Disk tables larger than the memory limit, by a planned cache, LRU, and the page cache.

A pass of gathers runs in a process of its own (`python -m benchmarks.disk PASS`), in a cgroup that
limits the memory of the process and of the page cache that it fills.
"""

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

from benchmarks.options import Options, PowerLaw
from benchmarks.results import Params, Row, skipped
from tgflow.graph import TemporalGraph
from tgflow.graph.cache import cached
from tgflow.graph.tables import FeatureTable
from tgflow.graph.tables.table import Table
from tgflow.plan import Loader, NegativeSampler, Plan

BATCHES = {172: 200, 768: 100}
"""Batch size by row width: features of edits or posts, and text embeddings."""
TABLE_BYTES, BUDGET = 4 << 30, 1 << 30
READ_SHARE = 0.7
"""Share of the newest events, whose batches an epoch reads within the time limit."""
LIMIT_S, QUICK_LIMIT_S = 100.0, 20.0
"""Seconds of a pass; slower methods are compared by the batches read by then."""
TARGETS = {"lru": 1.3, "mmap": 1.8}
METHODS = ("belady", "lru", "mmap")
HEADER_BYTES, CHECKSUM_BYTES = 4096, 4
SHARES = {"belady": 0.6, "lru": 0.85}
"""Share of the budget that the cache takes; buffers, batches and the plan take the rest."""
HEADROOM = 1.1
"""Share of the budget by which the process may grow during a pass."""
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Pass:
    """Settings of a pass."""

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
    """Time limit in seconds."""
    group: str | None = None
    """Folder of the memory cgroup to enter, if there is one."""


@dataclass(slots=True)
class PassTimes:
    """Measurements of a pass."""

    seconds: list[float]
    """Time at which each batch was ready, within the limit."""
    rows: list[int]
    """Rows that had been read by then."""


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
    return list(compared(taken, params))


def write_table(path: Path, num_rows: int, dim: int) -> None:
    """Write a table of normal rows."""
    table = FeatureTable(dim, placement="disk", path=path)
    piece = torch.randn(1 << 13, dim, generator=torch.Generator().manual_seed(0))
    for start in range(0, num_rows, len(piece)):
        table.append(piece[: num_rows - start])
    table.close()


def measured(task: Pass) -> PassTimes | None:
    """Run a pass in a process and cgroup of its own; None if the page cache cannot be limited."""
    file = os.open(task.path, os.O_RDONLY)  # the page cache of one process serves the next
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    with memory_group(f"tgflow-bench-{os.getpid()}") as group:
        if group is None and task.method == "mmap":
            return None
        task = replace(task, group=None if group is None else str(group))
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.disk", json.dumps(asdict(task))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
    if ran.returncode != 0:
        raise RuntimeError(f"{task} failed:\n{ran.stderr}")
    return PassTimes(**json.loads(ran.stdout.splitlines()[-1]))


def compared(taken: dict[str, PassTimes | None], params: Params) -> Iterator[Row]:
    """Yield the speed of the planned cache against each other method, on batches both read."""
    belady = taken["belady"]
    assert belady is not None
    for name, ratio in TARGETS.items():
        named, other = {**params, "against": name}, taken[name]
        if other is None:
            reason = "needs a memory cgroup: run as root"
            yield skipped("table on disk", "rows/s", named, reason)
            continue
        num = min(len(belady.rows), len(other.rows))
        ours, theirs = (belady.rows[num - 1] / each.seconds[num - 1] for each in (belady, other))
        named["batches"] = num
        yield Row("table on disk", ours, "rows/s", named, None, theirs, ratio)


@contextmanager
def memory_group(name: str) -> Iterator[Path | None]:
    """Make a memory cgroup (version 1 or 2) beneath that of this process; None if it may not."""
    found = None
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    for number, controllers, path in (line.split(":", 2) for line in lines):
        if "memory" in controllers.split(","):
            found = CGROUPS / "memory" / path.lstrip("/") / name
        elif number == "0" and (CGROUPS / "cgroup.controllers").exists():
            found = found or CGROUPS / path.lstrip("/") / name
    try:
        if found is not None:
            found.mkdir()
    except OSError:
        found = None
    try:
        yield found
    finally:
        if found is not None:
            found.rmdir()


def limit_memory(group: Path, num_bytes: int) -> None:
    """Limit a cgroup to so many more bytes than now, including the page cache."""
    is_v2 = (group / "memory.max").exists()
    if not is_v2:
        (group / "memory.force_empty").write_text("0", encoding="ascii")
    usage, limit = (
        ("memory.current", "memory.max")
        if is_v2
        else ("memory.usage_in_bytes", "memory.limit_in_bytes")
    )
    held = int((group / usage).read_text(encoding="ascii"))
    (group / limit).write_text(str(held + num_bytes), encoding="ascii")


class MappedRows:
    """A table's file mapped into memory."""

    dtype = torch.float32

    def __init__(self, path: str, num_rows: int, dim: int) -> None:
        stride = dim + CHECKSUM_BYTES // 4
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_RANDOM)  # readahead of random rows reads 30 times too much
        with warnings.catch_warnings(action="ignore"):  # the buffer is read-only
            floats = torch.frombuffer(mapped, dtype=torch.float32, offset=HEADER_BYTES)
        self._rows = floats[: num_rows * stride].view(num_rows, stride)[:, :dim]
        self.dim = dim

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return rows; row 0 for an id of -1."""
        return torch.index_select(self._rows, 0, ids.clamp(min=0), out=out)


def take(task: Pass) -> PassTimes:
    """Prepare the batches of a pass once, as a TGN reads them: one hop of 10."""
    group = None if task.group is None else Path(task.group)
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    graph = TemporalGraph.from_events(PowerLaw(task.num_events // 10).read(0, task.num_events))
    plan = Plan(
        graph,
        seed=0,
        batch_size=task.batch,
        fanouts=(10,),
        strategy="recent",
        visibility="event",
        negatives=NegativeSampler(random=1),
        start=task.num_events - task.num_read,
        with_memory=True,
    )
    plan.pending(0, 0)
    if group is not None:
        limit_memory(group, int(HEADROOM * task.budget))
    graph.edge_x = open_table(task)  # type: ignore[assignment]  # only gathers from a mapped file
    taken, started, num_rows = PassTimes([], []), time.perf_counter(), 0
    for batch in Loader(plan):
        assert batch.x is not None
        tables = {id(block.edge_table): block.edge_table for block in batch.blocks}
        num_rows += len(batch.x) + sum(len(x) for x in tables.values() if x is not None)
        taken.rows.append(num_rows)
        taken.seconds.append(time.perf_counter() - started)
        if taken.seconds[-1] > task.limit_s:
            break
    return taken


def open_table(task: Pass) -> Table | MappedRows:
    """Return the table, read by the method of the pass."""
    if task.method == "mmap":
        return MappedRows(task.path, task.num_events, task.dim)
    table = FeatureTable(task.dim, placement="disk", path=task.path)
    size = int(SHARES[task.method] * task.budget)
    return cached(table, bytes=size, policy="belady" if task.method == "belady" else "lru")


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(asdict(take(Pass(**given)))))
