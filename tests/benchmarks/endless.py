"""A run within a horizon, after 2 and after 8 of them: memory, CPU time, files and checkpoints.

Each model learns in a process of its own, by `tgflow run`, a made file of skewed, partly returning
pairs; with `new nodes` all sources are replaced in each horizon. Pieces and files that are rotated
are as much smaller than those of a run as its horizon is. Times are CPU seconds.
"""

import gc
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.options import Options
from benchmarks.results import Params, Row
from tgflow.checkpoint import CheckpointStore, Component
from tgflow.run.checkpoints import Checkpoints
from tgflow.run.context import RunContext
from tgflow.run.machine import anonymous_bytes
from tgflow.train.observe import Callback, StepRecord

BATCH, NODES, NUM_HORIZONS = 500, 2_000, 8
SPANS = (2, 3), (7, 8)
"""The horizons that are compared: figures are means of two."""
SMALL = ("--dim", "32", "--neighbors", "5")
MODELS: dict[str, tuple[tuple[str, ...], int]] = {
    "recency": (("-m", "recency"), 0),
    "counts": (("-m", "counts"), 0),
    "tgn+pairs": (("-m", "tgn+pairs", *SMALL), 0),
    "tgn, new nodes": (("-m", "tgn", *SMALL), NODES),
}
"""Settings of each model, and new sources in each horizon."""
TARGETS = {
    "anonymous MB": 1.05,
    "CPU s of 1,000 events": 1.05,
    "run directory MB": 1.1,
    "checkpoint MB": 1.1,
    "checkpoint s": 1.1,
}
"""Figures, and the most that each may be in the later horizons over the earlier ones."""
STOP = 0.1
"""Seconds for which a checkpoint may stop the learning."""


def write_events(path: Path, num: int, horizon: int, num_new: int) -> None:
    draw = np.random.default_rng(0)
    src, dst = (draw.random((2, num)) ** 3 * NODES).astype(np.int64)
    src += np.arange(num) * num_new // horizon
    columns = np.stack([2 * src, 2 * dst + 1, np.arange(num)], axis=1)
    path.mkdir()
    for number, rows in enumerate(np.array_split(columns, 4 * num // horizon)):
        file = path / f"{number:04}.csv"
        np.savetxt(file, rows, "%d", ",", header="src,dst,t", comments="")


def bytes_of(folder: Path) -> int:
    """Return the bytes of the files in a folder, linked ones counted once."""
    found: dict[int, int] = {}
    for parent, _, names in os.walk(folder):  # skips folders that are being removed
        for name in names:
            with suppress(FileNotFoundError):
                file = Path(parent, name).stat()
                found[file.st_ino] = 512 * file.st_blocks
    return sum(found.values())


class Probe(Component, Callback):
    """Measures a run at the end of each horizon."""

    def __init__(self, run: RunContext, horizon: int, found: list[dict[str, float]]) -> None:
        self._run, self._horizon, self._found = run, horizon, found
        self._begin = time.process_time()
        run.trainer.progress.timeline.capacity = 2 * (horizon // BATCH)

    def on_step(self, record: StepRecord) -> None:
        if record.stop % self._horizon:
            return
        seconds = time.process_time() - self._begin
        while any((self._run.path / "checkpoints").glob(".tmp-*")):  # the last one is being written
            time.sleep(0.01)
        gc.collect()
        self._found.append({
            "anonymous MB": anonymous_bytes() / 1e6,
            "CPU s of 1,000 events": 1e3 * seconds / self._horizon,
            "run directory MB": bytes_of(self._run.path) / 1e6,
        })  # fmt: skip
        self._begin = time.process_time()


def measure(name: str, horizon: int) -> list[dict[str, float]]:
    """Return the figures at the end of each horizon."""
    from tgflow.cli import main
    from tgflow.graph.log import EventLog
    from tgflow.run import build, ingestion, records

    every = max(1, horizon // BATCH // 4)
    EventLog.piece = max(512, horizon // 16 // 512 * 512)  # whole pages
    ingestion.SEGMENT_BYTES, records.STEP = 32 * horizon, 2 * every
    records.LATEST = records.EARLIER = 4 * every
    flags, num_new = MODELS[name]
    found: list[dict[str, float]] = []
    times: dict[str, list[float]] = {"save": [], "take": []}

    def timed(kind: type, name: str) -> None:
        call = getattr(kind, name)

        def timing(*arguments: Any) -> Any:
            begin = time.thread_time()
            result = call(*arguments)
            times[name].append(time.thread_time() - begin)
            return result

        setattr(kind, name, timing)

    timed(CheckpointStore, "save")  # on the thread that writes
    timed(Checkpoints, "take")  # while learning stops
    make: Callable[[RunContext], Any] = lambda run: Probe(run, horizon, found)  # noqa: E731
    build.COMPONENTS = (*build.COMPONENTS, make)
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        write_events(Path("made"), NUM_HORIZONS * horizon, horizon, num_new)
        options = ["--horizon-events", horizon, "--batch-size", BATCH, "--threads", 1]
        options += ["--checkpoint-every", 0, "--checkpoint-batches", every, "--log-format", "json"]
        run = ["run", "made", "-o", "out", "--time-unit", "s", *flags, *map(str, options)]
        assert main(run) == 0
        lines = map(json.loads, Path("out/run.log").read_text().splitlines())
        saved = [each for each in lines if each["event"] == "checkpoint"]
    for number, figures in enumerate(found):
        own = [each for each in saved if each["position"] <= (number + 1) * horizon][-4:]
        figures["checkpoint MB"] = median(each["bytes"] for each in own) / 1e6
        stop = saved.index(own[-1]) + 1
        figures["checkpoint s"] = median(times["save"][stop - len(own) : stop])
        figures["stop s"] = max(times["take"][:stop])
    return found


def run(options: Options) -> list[Row]:
    """Measure every model; targets are ratios of the later span over the earlier one."""
    horizon = 4_000 if options.quick else 20_000
    rows: list[Row] = []
    for name in MODELS:
        options.say(f"endless: {name}")
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            found = pool.submit(measure, name, horizon).result()
        rows += rows_of(name, horizon, found)
    return rows


def rows_of(name: str, horizon: int, found: list[dict[str, float]]) -> list[Row]:
    """Return the rows of a model from its figures at the end of each horizon."""
    model: Params = {"model": name, "horizon": horizon}
    rows = []
    for figure, most in TARGETS.items():
        early, late = (mean(found[at - 1][figure] for at in span) for span in SPANS)
        params: Params = {**model, "by horizon": ", ".join(f"{x[figure]:.3g}" for x in found)}
        rows.append(Row(f"{figure}, later", late / early, "of before", params, most))
    rows.append(Row("longest stop, CPU time", found[-1]["stop s"], "s", model, STOP))
    return rows
