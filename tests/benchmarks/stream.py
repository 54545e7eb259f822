"""Ingest speed of files into the durable log, against pyarrow only reading them."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from benchmarks.options import Options
from benchmarks.race import take_turns
from benchmarks.results import Params, Row
from tgflow.checkpoint.durable.log import DurableLog
from tgflow.streams import FileSource
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.dead_letters import DeadLetterFiles
from tgflow.streams.ingest.ingest import Ingest

NUM_ROWS = 1_300_000
NUM_BAD = 13
NAMES = ["src", "dst", "t", "f0", "f1", "f2", "f3"]
BAD_LINE = b"1,x,3,0,0,0,0"
TARGETS = {"clean.csv": 3e6, "bad.csv": 2.5e6, "clean.parquet": 10e6}


def run(options: Options) -> list[Row]:
    """Measure in the current directory's file system."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as directory:
        return list(_rows(Path(directory), options))


def _rows(directory: Path, options: Options) -> Iterator[Row]:
    num_rows = NUM_ROWS // 10 if options.quick else NUM_ROWS
    for name in write_files(directory, num_rows):
        options.say(f"files: {name}")
        path = directory / name
        methods: dict[str, Callable[[int], int]] = {
            "log": lambda _, path=path: into_log(path, directory),  # type: ignore[misc]
            "bare": lambda _, path=path: read_bare(path),  # type: ignore[misc]
        }
        seconds = take_turns(methods, 1, options.rounds)
        speed = {method: num_rows / float(taken[0]) for method, taken in seconds.items()}
        params: Params = {"file": name, "rows": num_rows, "features": 4}
        target = TARGETS[name]
        yield Row("files, to the log", speed["log"], "rows/s", params, target, speed["bare"])


def write_files(directory: Path, num_rows: int) -> list[str]:
    """Write the same events in each form; returns the files' names."""
    rng = np.random.default_rng(0)
    columns: dict[str, object] = {
        name: rng.integers(0, 100_000, num_rows) for name in ("src", "dst")
    }
    columns["t"] = np.sort(rng.integers(1_600_000_000, 1_700_000_000, num_rows))
    for name in NAMES[3:]:
        columns[name] = rng.standard_normal(num_rows).astype(np.float32)
    table = pa.table(columns)
    pa.parquet.write_table(table, directory / "clean.parquet", compression="zstd")
    pa.csv.write_csv(table, directory / "clean.csv", pa.csv.WriteOptions(quoting_style="none"))
    lines = (directory / "clean.csv").read_bytes().split(b"\n")
    for i in range(NUM_BAD):
        lines[(i * num_rows + num_rows // 2) // NUM_BAD] = BAD_LINE
    (directory / "bad.csv").write_bytes(b"\n".join(lines))
    return list(TARGETS)


def into_log(path: Path, directory: Path) -> int:
    """Read a file into a log on the disk; returns the number of events."""
    with tempfile.TemporaryDirectory(dir=directory) as run_directory:
        letters = DeadLetterFiles(Path(run_directory) / "dead-letters")
        with DurableLog(Path(run_directory) / "log") as log:
            source = FileSource(path, features="f")
            ingest = Ingest(source, OrderConfig(), letters=letters, max_bad_ratio=0.05, log=log)
            num_events = sum(len(events) for events in ingest)
        letters.close()
    return num_events


def read_bare(path: Path) -> int:
    """Read a file by pyarrow alone, as text where a number may be bad; returns the rows."""
    if path.suffix == ".parquet":
        return sum(len(batch) for batch in pa.parquet.ParquetFile(path).iter_batches(1 << 16))
    types = {name: pa.int64() for name in NAMES[:3]} | {name: pa.float32() for name in NAMES[3:]}
    if path.name == "bad.csv":
        types["dst"] = pa.string()
    converting = pa.csv.ConvertOptions(column_types=types)
    with pa.csv.open_csv(path, convert_options=converting) as reader:
        return sum(len(batch) for batch in reader)
