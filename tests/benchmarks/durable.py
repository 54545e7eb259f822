"""How fast the durable log and checkpoints are, beside writing the same bytes and nothing else."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.bench.turns import seconds_of
from tgflow.checkpoint import Checkpoint, CheckpointStore
from tgflow.durable.fs import sync_data
from tgflow.durable.log import DurableLog

EVENTS_TARGET = 2e6
"""The fastest source brings as many events a second; the log must keep up."""
_POSITION = {"offset": 10**9, "row": 7}
FOOTER = {"watermark": 1 << 40, "partitions": {str(p): _POSITION for p in range(8)}}


def run(options: Options) -> list[Row]:
    """Measure log and checkpoints in the current directory's file system."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as directory:
        rows = list(log_rows(Path(directory), options))
        return rows + list(checkpoint_rows(Path(directory), options))


def log_rows(directory: Path, options: Options) -> Iterator[Row]:
    """Append frames of 1,000 and 10,000 events, synced in groups, then open and read the log."""
    total = 200_000 if options.quick else 4_000_000
    for size in (1_000, 10_000):
        options.say(f"durable: the log, {size:,} events a frame")
        batch = events(size)
        took = best_of(options.rounds, partial(log_round, directory, batch, total // size))
        num_bytes = took.pop("bytes")
        params: Params = {
            "events": total,
            "frame": size,
            "bytes/event": round(num_bytes / total, 1),
        }
        bare = num_bytes / took["bare"] / 1e9
        yield Row("log, append", total / took["append"], "events/s", params, EVENTS_TARGET)
        yield Row("log, append", num_bytes / took["append"] / 1e9, "GB/s", params, None, bare)
        yield Row("log, open after a crash", num_bytes / took["open"] / 1e9, "GB/s", params)
        yield Row("log, read", total / took["read"], "events/s", params)


def log_round(directory: Path, batch: pa.RecordBatch, count: int) -> dict[str, float]:
    """Return the seconds of each thing done with a log once, and its bytes."""
    path = directory / "log"
    took = {"append": seconds_of(partial(append, path, batch, count))}
    num_bytes = sum(file.stat().st_size for file in path.iterdir())
    frame = memoryview(bytes(num_bytes // count))
    took |= {
        "bytes": num_bytes,
        "bare": seconds_of(partial(write_bare, directory / "bare", [frame] * count)),
        "open": seconds_of(lambda: DurableLog(path).close()),
        "read": seconds_of(partial(read, path)),
    }
    shutil.rmtree(path)
    return took


def checkpoint_rows(directory: Path, options: Options) -> Iterator[Row]:
    """Save and load beside a bare write, and how long other threads wait meanwhile."""
    for size in (10 << 20,) if options.quick else (100 << 20, 1 << 30):
        options.say(f"durable: a checkpoint of {size >> 20:,} MiB")
        checkpoint = Checkpoint({"model": tensors(size)})
        took = best_of(options.rounds, partial(checkpoint_round, directory, checkpoint))
        params: Params = {"MiB": size >> 20, "tensors": len(checkpoint.sections["model"])}
        bare = size / took["bare"] / 1e9
        yield Row("checkpoint, save", size / took["save"] / 1e9, "GB/s", params, None, bare)
        yield Row("checkpoint, load", size / took["load"] / 1e9, "GB/s", params)
        yield Row("checkpoint, longest pause of another thread", took["pause"] * 1e3, "ms", params)


def checkpoint_round(directory: Path, checkpoint: Checkpoint) -> dict[str, float]:
    """Return the seconds of each thing done with a checkpoint once."""
    store = CheckpointStore(directory / "checkpoints", keep=1)
    data = [x.numpy().data.cast("B") for x in checkpoint.sections["model"].values()]
    took = {
        "bare": seconds_of(partial(write_bare, directory / "bare", data)),
        "save": seconds_of(lambda: store.save(1, checkpoint)),
        "load": seconds_of(store.newest),
        "pause": longest_pause(lambda: store.save(2, checkpoint)),
    }
    shutil.rmtree(store.directory)
    return took


def best_of(rounds: int, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the least of each figure."""
    taken = [measure() for _ in range(rounds)]
    return {name: min(each[name] for each in taken) for name in taken[0]}


def events(size: int) -> pa.RecordBatch:
    """Return a poll's rows as the ingest logs them."""
    ids = np.arange(size, dtype=np.int64)
    return pa.record_batch(
        {
            "partition": (ids % 8).astype(np.int32),
            "seq": ids,
            "src": ids * 7 % 1000,
            "dst": ids * 11 % 1000,
            "t": ids,
            "label": (ids % 2).astype(np.int32),
        }
    )


def tensors(num_bytes: int, num: int = 50) -> dict[str, torch.Tensor]:
    """Return tensors of so many bytes in all."""
    return {f"w{i}": torch.full((num_bytes // num // 4,), float(i)) for i in range(num)}


def append(path: Path, batch: pa.RecordBatch, count: int) -> None:
    """Append `count` frames and wait for the disk."""
    with DurableLog(path) as log:
        for _ in range(count):
            log.append(batch, FOOTER)


def read(path: Path) -> None:
    """Read all frames."""
    with DurableLog(path) as log:
        for _ in log.read():
            pass


def write_bare(path: Path, data: list[memoryview]) -> None:
    """Write the same bytes in the same pieces, and wait for the disk at the end."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for piece in data:
            os.write(fd, piece)
        sync_data(fd)
    finally:
        os.close(fd)
    path.unlink()


def longest_pause(act: Callable[[], object]) -> float:
    """Return for how long the calling thread stood still at most, in seconds, while `act` ran."""
    thread = threading.Thread(target=act)
    thread.start()
    last, longest = time.perf_counter(), 0.0
    while thread.is_alive():
        time.sleep(1e-4)  # as a thread does whose work is in native code: it needs the lock seldom
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest
