"""What decides the speed on a GPU: of streams, memory and kernels."""

import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from torch.profiler import profile

from benchmarks.options import Options, seconds_of
from benchmarks.own import Task, graph_on, named_task, tgn_of
from benchmarks.results import Params, Row
from benchmarks.step import DATA
from tgflow import TGN, ContinualConfig, ContinualTrainer
from tgflow.cuda.device import Device, device_of
from tgflow.graph.events import MICRO_BATCH_END
from tgflow.models import TGNConfig

BATCHES = (200, 1000, 4000)
PIECE, DEFAULT_EVENTS = 10_000, 60_000
"""Events per piece of the stream, and those of the default model, which is far slower."""
PAUSES, PROFILED = 60, 20
"""Pauses of a stream, and micro-batches that are profiled."""


def run(options: Options) -> list[Row]:
    """Measure on the first GPU, and report each row at once, as a later one may fail."""
    (task, params), rows = named_task(options), list[Row]()
    for row in rows_on(device_of(torch.device("cuda", 0)), task, params | {"device": "cuda"}):
        options.say(f"{row.name}: {row.value:,.1f} {row.unit}, {row.params}")
        rows.append(row)
    file = options.data[0] if options.data else DATA
    return [*rows, command_row(file, "cuda")]


def rows_on(gpu: Device, task: Task, params: Params) -> Iterator[Row]:
    """Measure in the order of what a row is worth."""
    for name in ("TGN", "default model"):
        for size in BATCHES:
            yield from live_rows(name, gpu, task, size, params)
    yield pause_row(gpu, task, BATCHES[0], params)
    for size in (BATCHES[0], BATCHES[-1]):
        yield from kernel_rows(gpu, task, size, params)


def live_rows(name: str, gpu: Device, task: Task, size: int, given: Params) -> Iterator[Row]:
    """Measure a continual trainer with default settings and everything on a GPU.

    Each micro-batch is ranked among 20 negatives, learned with replay, and recorded. The second
    half of the stream counts, and what a micro-batch of it took of threads and the GPU's steps.
    """
    is_default = name == "default model"
    events = task.events[: DEFAULT_EVENTS if is_default else None]
    trainer = trainer_of(gpu, task, size, is_default=is_default)
    config, num = trainer.config, len(events) // size
    pieces = (events[at : at + PIECE] for at in range(0, len(events), PIECE))
    records = (step.to_json() for step in trainer.steps(pieces))
    deque(islice(records, num // 2), maxlen=0)
    clocks: dict[str, Callable[[], float]] = {
        "trainer's thread": time.thread_time,
        "all threads": time.process_time,
        "GPU": partial(getattr, trainer._learner, "compute_seconds"),
    }
    first, begin = trainer.position, {part: clock() for part, clock in clocks.items()}
    with patch.object(gpu, "capture", wraps=gpu.capture) as capture:
        seconds = seconds_of(partial(deque, records, 0), gpu.device.type)
    num, title = trainer.position - first, f"{name} continual learning"
    given = given | {"negatives": config.mrr_negatives, "replay": config.replay_ratio}
    given = given | {"batch": size, "captures": capture.call_count}
    yield Row(title, num / seconds, "events/s", given)
    for part, clock in clocks.items():
        ms = 1e3 * size / num * (clock() - begin[part])
        yield Row(f"{title}, micro-batch", ms, "ms", given | {"part": part})


def trainer_of(gpu: Device, task: Task, size: int, *, is_default: bool = False) -> ContinualTrainer:
    """Return a continual trainer of TGN without features of pairs, or as `tgflow run` makes it."""
    x_dim, config = task.events.x_dim, ContinualConfig(batch_size=size, learning_rate=task.lr)
    model = TGN(TGNConfig(edge_x_dim=x_dim)) if is_default else tgn_of(task)
    return ContinualTrainer(model.to(gpu.device), graph_on(gpu, x_dim), config)


def pause_row(gpu: Device, task: Task, size: int, params: Params) -> Row:
    """Measure the memory reserved after a stream's pauses, beside that after a tenth of them."""
    trainer, reserved = trainer_of(gpu, task, size), list[float]()
    part = min(5 * size // 2, len(task.events) // PAUSES)
    pieces = [task.events[at : at + part] for at in range(0, PAUSES * part, part)]
    with patch.object(gpu, "capture", wraps=gpu.capture) as capture:
        for _ in trainer.steps(each for piece in pieces for each in (piece, MICRO_BATCH_END)):
            reserved.append(torch.cuda.memory_reserved() / 1e6)
    given = params | {"batch": size, "pauses": PAUSES, "captures": capture.call_count}
    return Row("memory after pauses", reserved[-1], "MB", given, reserved[len(reserved) // 10])


def kernel_rows(gpu: Device, task: Task, size: int, params: Params) -> Iterator[Row]:
    """Measure the longest kernels and calls of the driver of a micro-batch."""
    steps, num = trainer_of(gpu, task, size).steps(iter([task.events])), len(task.events) // size
    deque(islice(steps, num * 3 // 4), maxlen=0)  # the last new shapes come early
    num = max(1, min(num // 8, PROFILED))
    with profile() as found:
        deque(islice(steps, num), maxlen=0)
        gpu.synchronize()
    rows: list[tuple[float, float, str, str]] = []
    for each in found.key_averages():
        us = each.self_device_time_total
        if us or each.key.startswith("cu"):
            kind, us = ("kernel", us) if us else ("driver's call", each.self_cpu_time_total)
            rows.append((us / num, each.count / num, each.key[:60], kind))
    for us, times, key, kind in sorted(rows, reverse=True)[:40]:
        given = params | {"batch": size, "name": key, "times": times}
        yield Row(f"{kind} of a micro-batch", us, "us", given)


def command_row(file: Path, device: str, *flags: str) -> Row:
    """Measure `tgflow run` with all its defaults, in a process of its own, as it reports."""
    with TemporaryDirectory() as folder:
        given = ["--stream", str(file), "--time-unit", "s", "--device", device, "--out", folder]
        command = [sys.executable, "-m", "tgflow", "run", *given, "--overwrite", *flags]
        subprocess.run(command, check=True, capture_output=True)
        found = json.loads(Path(folder, "metrics.json").read_text(encoding="utf-8"))
    params: Params = {"stream": file.name, "events": found["num_events"], "device": device}
    return Row("`tgflow run`", found["events_per_second"], "events/s", params)
