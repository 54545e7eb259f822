"""What checkpoints cost a training that goes on: windows with one and without, in turn."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.checkpoint import CheckpointStore, CheckpointWriter
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.models.tgn import TGN
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.observe import StepRecord

EVERY_SECONDS = 60.0
"""How often `tgflow run` takes a checkpoint."""
SLOWER_TARGET = 2.0


@dataclass(frozen=True, slots=True)
class Window:
    """Some micro-batches in a row."""

    seconds: float
    copy_seconds: float | None = None
    """How long the training stood still for the checkpoint; None without one."""
    write_seconds: float = 0.0
    num_bytes: int = 0


def run(options: Options) -> list[Row]:
    """Measure a training of TGN with and without checkpoints, in the current directory."""
    name, events = options.wikipedia()
    events = events[: options.events or len(events)]
    num_warm, batches = (2_000, 5) if options.quick else (55_000, 50)
    options.say(f"checkpoint: {name}, {num_warm:,} events first, then {batches} batches a window")
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as directory:
        windows = list(_windows(events, num_warm, batches, Path(directory), options.quick))
    return _rows(name, windows, batches)


def _windows(
    events: EventBatch, num_warm: int, batches: int, directory: Path, is_quick: bool
) -> Iterator[Window]:
    """Train on all events; yield windows without a checkpoint and with one, as A B B A."""
    torch.manual_seed(0)
    model = TGN()
    trainer = ContinualTrainer(model, TemporalGraph(), ContinualConfig())
    writer = CheckpointWriter(CheckpointStore(directory))
    steps = trainer.steps([events])
    for _ in range(num_warm // trainer.config.batch_size):
        next(steps)
    most = 4 if is_quick else 40
    for number in range(most):
        keeps = number % 4 in (1, 2)
        window = _window(trainer, steps, batches, writer if keeps else None)
        if window is None:
            break
        yield window
    steps.close()  # type: ignore[attr-defined]


def _window(
    trainer: ContinualTrainer,
    steps: Iterator[StepRecord],
    batches: int,
    writer: CheckpointWriter | None,
) -> Window | None:
    """Train on one window; None if the stream ended in it."""
    start, copied = time.perf_counter(), 0.0
    if writer is not None:
        checkpoint = trainer.checkpoint()
        writer.submit(trainer.position, checkpoint)
        copied = time.perf_counter() - start
    for _ in range(batches):
        if next(steps, None) is None:
            return None
    seconds = time.perf_counter() - start
    if writer is None:
        return Window(seconds)
    begin = time.perf_counter()
    stats = writer.wait()
    late = time.perf_counter() - begin  # what had to be waited for would have slowed what follows
    return Window(seconds + late, copied, stats.seconds, stats.num_bytes)


def _rows(name: str, windows: list[Window], batches: int) -> list[Row]:
    bare = [window.seconds for window in windows if window.copy_seconds is None]
    kept = [window for window in windows if window.copy_seconds is not None]
    if not bare or not kept:
        raise ValueError("the stream is too short for two windows; use more --events")
    events = batches * ContinualConfig().batch_size
    without = statistics.median(bare)
    cost = statistics.median(window.seconds for window in kept) - without
    params: Params = {"stream": name, "windows": len(windows), "window_s": round(without, 2)}
    copies = statistics.median(window.copy_seconds or 0.0 for window in kept)
    every: Params = {**params, "every_s": EVERY_SECONDS, "cost_s": round(cost, 3)}
    size: Params = {**params, "MB": round(kept[-1].num_bytes / 1e6)}
    return [
        Row("training, no checkpoint", events / without, "events/s", params),
        Row("training, one in a window", events / (without + cost), "events/s", params, None,
            events / without),
        Row("slowed by one a minute", 100 * cost / EVERY_SECONDS, "% slower", every, SLOWER_TARGET),
        Row("checkpoint, copy", 1e3 * copies, "ms", size),
        Row("checkpoint, written beside", statistics.median(w.write_seconds for w in kept), "s",
            size),
    ]  # fmt: skip
