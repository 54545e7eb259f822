"""What a disk gives of a table's rows: in every way of reading them, and when they are written."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options
from tgflow.tables.disk import DEFAULT_BUDGET, DiskRows

FILE_BYTES = 1 << 30
CALL = 12_000
WAYS = ("io_uring", "pread", "page cache")


def disk_rows(dim: int, options: Options) -> Iterator[Row]:
    """Append, read random rows in every way, and read all rows in order."""
    params: Params = {"placement": "disk", "dim": dim}
    row_bytes = 4 * dim
    num_rows = (16 << 20 if options.quick else FILE_BYTES) // row_bytes
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        yield Row("append and sync", write(path, row_bytes, num_rows), "bytes/s", params)
        speeds = {}
        for way in WAYS:
            rows = DiskRows(row_bytes, "bench", path, DEFAULT_BUDGET, way)
            speeds[rows.way] = random_reads(rows, num_rows, 2 if options.quick else 8)
            rows.close()
        for name, speed in speeds.items():
            sized = {**params, "ids": CALL, "way": name}
            baseline = None if "cache" in name else speeds["pread through the page cache"]
            yield Row("random rows", speed, "rows/s", sized, None, baseline)
        rows = DiskRows(row_bytes, "bench", path, DEFAULT_BUDGET)
        yield Row("rows in order", reads_in_order(rows, num_rows), "bytes/s", params)
        rows.close()


def write(path: Path, row_bytes: int, num_rows: int) -> float:
    """Return bytes a second of appends that end on the disk."""
    rows = DiskRows(row_bytes, "bench", path, DEFAULT_BUDGET)
    part = torch.randint(0, 256, (min(num_rows, 20_000), row_bytes), dtype=torch.uint8)

    def append_all() -> None:
        while rows.num_rows < num_rows:
            rows.append(part[: num_rows - rows.num_rows], rows.num_rows)
        rows.sync()

    spent = seconds(append_all)
    rows.close()
    return num_rows * row_bytes / spent


def random_reads(rows: DiskRows, num_rows: int, calls: int) -> float:
    """Return rows a second, over `calls` gathers that come one after another."""
    out = torch.empty(CALL, rows.row_bytes, dtype=torch.uint8)
    ids = [torch.randint(num_rows, (CALL,)) for _ in range(calls)]

    def read_all() -> None:
        for each in ids:
            rows.gather(each, out, num_rows)

    return CALL * calls / seconds(read_all)


def reads_in_order(rows: DiskRows, num_rows: int) -> float:
    """Return bytes a second of reading a file from its beginning to its end."""

    def read_all() -> None:
        for start in range(0, num_rows, CALL):
            rows.read(start, min(start + CALL, num_rows))

    return num_rows * rows.row_bytes / seconds(read_all)


def seconds(call: Callable[[], None]) -> float:
    """Return how long a call takes, once: what it reads is not there for a second time."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
