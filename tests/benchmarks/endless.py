"""Memory, CPU time and checkpoints of a run within a horizon, at 2 and at 8 horizons.

Each model learns in a process of its own from a made stream of skewed, partly returning pairs; with
`new nodes` a twentieth of the sources is replaced in each horizon.
"""

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tgflow import TGN, ContinualConfig, ContinualTrainer, TemporalGraph
from tgflow.checkpoint import CheckpointStore
from tgflow.cli.benchmarks.row import Params, Row
from tgflow.cli.benchmarks.setup import Options
from tgflow.graph import Horizon
from tgflow.graph.events import EventBatch
from tgflow.graph.log import EventLog
from tgflow.models import Recency, SmoothedCounts
from tgflow.nn.model import TemporalModel
from tgflow.run.machine import anonymous_bytes

CHUNK, NODES = 4096, 5_000
SPANS = (2, 8)
"""Horizons after which a run is measured, over the horizon before."""
MODELS: dict[str, tuple[Callable[[], TemporalModel], int]] = {
    "recency": (Recency, 0),
    "counts": (SmoothedCounts, 0),
    "tgn+pairs": (partial(TGN, memory_dim=32, time_dim=32, embedding_dim=32), 0),
    "tgn, new nodes": (
        partial(TGN, memory_dim=32, time_dim=32, embedding_dim=32, pair_features=()),
        NODES // 20,
    ),
}
"""Models, and new sources in each horizon."""


def made_events(num: int, horizon: int, num_new: int) -> Iterator[EventBatch]:
    generator = torch.Generator().manual_seed(0)
    for start in range(0, num, CHUNK):
        size = min(CHUNK, num - start)
        src, dst = (torch.rand(2, size, generator=generator) ** 3 * NODES).long().unbind(0)
        shift = torch.arange(start, start + size) * num_new // horizon
        yield EventBatch(2 * (src + shift), 2 * dst + 1, torch.arange(start, start + size))


def measure(name: str, horizon: int) -> list[dict[str, float]]:
    """Return the figures at each of `SPANS` horizons."""
    EventLog.piece = max(1, horizon // 16)
    torch.set_num_threads(1)
    make, num_new = MODELS[name]
    graph = TemporalGraph(horizon=Horizon(horizon))
    trainer = ContinualTrainer(make(), graph, ContinualConfig(num_threads=1))
    found: list[dict[str, float]] = []
    with TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder), keep=1)
        begin = time.process_time()
        for record in trainer.steps(made_events(max(SPANS) * horizon, horizon, num_new)):
            if record.stop % horizon:
                continue
            seconds = time.process_time() - begin
            if record.stop // horizon in SPANS:
                gc.collect()
                held, start = anonymous_bytes(), time.perf_counter()
                store.save(record.stop, trainer.checkpoint())
                saving = time.perf_counter() - start
                files = [file for file in Path(folder).rglob("*") if file.is_file()]
                found.append({
                    "anonymous MB": held / 1e6,
                    "CPU s of 1,000 events": 1e3 * seconds / horizon,
                    "checkpoint MB": sum(file.stat().st_size for file in files) / 1e6,
                    "checkpoint s": saving,
                })  # fmt: skip
            begin = time.process_time()
    return found


def run(options: Options) -> list[Row]:
    """Measure every model; targets are ratios of the later span over the earlier one."""
    horizon = 20_000 if options.quick else 200_000
    rows = []
    for name in MODELS:
        options.say(f"endless: {name}")
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            early, late = pool.submit(measure, name, horizon).result()
        for figure, value in late.items():
            params: Params = {
                "model": name,
                "horizon": horizon,
                "at 2 horizons": round(early[figure], 4),
            }
            most = 1.1 if "checkpoint" in figure else 1.05
            title = f"{figure}, at 8 horizons"
            rows.append(Row(title, value / early[figure], "of before", params, most))
    return rows
