"""A table on disk that exceeds the memory for it: planned cache, LRU, and the page cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.disk_pass import Pass, PassTimes, asked
from benchmarks.memory_limit import NoLimit, memory_group
from benchmarks.results import skipped
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options
from tgflow.tables import FeatureTable

BATCHES = {172: 200, 768: 100}
"""Events of a batch by the floats of a row: features of edits or posts, and embeddings of texts."""
TABLE_BYTES, BUDGET = 4 << 30, 1 << 30
READ_SHARE = 0.7
"""The newest events, of whose batches an epoch is read, as long as there is time."""
LIMIT_S, QUICK_LIMIT_S = 100.0, 20.0
"""Of a pass: what is slower is compared by the batches that it has read until then."""
TARGETS = {"lru": 1.3, "mmap": 1.8}
METHODS = ("belady", "lru", "mmap")


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
        tasks = {
            name: Pass(name, str(path), num_rows, num_read, dim, batch, BUDGET, limit, None)
            for name in METHODS
        }
        taken = {name: measured(task, options) for name, task in tasks.items()}
    params: Params = {
        "table": f"{TABLE_BYTES >> 20} MiB",
        "budget": f"{BUDGET >> 20} MiB",
        "floats": dim,
        "batch": batch,
        "batches of an epoch": -(-num_read // batch),
    }
    return list(_rows(taken, params, BUDGET))


def write_table(path: Path, num_rows: int, dim: int) -> None:
    """Write rows."""
    table = FeatureTable(dim, placement="disk", path=path)
    piece = torch.randn(1 << 13, dim, generator=torch.Generator().manual_seed(0))
    for start in range(0, num_rows, len(piece)):
        table.append(piece[: num_rows - start])
    table.close()


def drop_pages(path: Path) -> None:
    """Forget a file in the page cache, where what one process has read serves the next."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def measured(task: Pass, options: Options) -> PassTimes | None:
    """Run a pass in a process of its own; None where the page cache cannot be limited."""
    options.say(f"disk: {task.method}")
    drop_pages(Path(task.path))
    try:
        with memory_group(f"tgflow-bench-{os.getpid()}") as group:
            return _child(replace(task, group=str(group.path), is_v2=group.is_v2))
    except NoLimit:
        return None if task.method == "mmap" else _child(task)


def _child(task: Pass) -> PassTimes:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.disk_pass", asked(task)],
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


def _rows(taken: dict[str, PassTimes | None], params: Params, budget: int) -> Iterator[Row]:
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
