"""How fast a stream is learned as it comes where graph, features and model are all on a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice

from tgflow.bench.options import Options
from tgflow.bench.own import graph_on, tgn_of
from tgflow.bench.row import Params, Row
from tgflow.bench.task import Task
from tgflow.bench.turns import seconds_of
from tgflow.cuda.device import Device
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.observe import StepRecord

TARGET = 0.2e6
"""Events a second to reach on one H200."""
WARM_UP = 40
"""Micro-batches before it is timed: kernels are compiled and captured in them."""
PIECE = 10_000
"""Events that the stream brings at once."""


def live_row(task: Task, params: Params, device: str | Device, options: Options) -> Row:
    """Return events a second of what `tgflow run` does with them, defaults all.

    Each micro-batch is ranked among 20 negatives, learned once with replay, and recorded.
    """
    options.say("train: TGN learns a stream on a device")
    config = ContinualConfig(batch_size=task.batch_size, learning_rate=task.lr)
    graph = graph_on(device, task.events.x_dim)
    trainer = ContinualTrainer(tgn_of(task).to(graph.device), graph, config)
    events = task.events
    pieces = [events[at : at + PIECE] for at in range(0, len(events), PIECE)]
    steps = trainer.steps(pieces)
    warm_up = min(WARM_UP, len(events) // task.batch_size // 2)
    deque(islice(steps, warm_up), maxlen=0)
    before = trainer.position
    seconds = seconds_of(partial(_record, steps), graph.device.type)
    given = params | {
        "batch": config.batch_size,
        "negatives": config.mrr_negatives,
        "replay": config.replay_ratio,
        "device": "cuda",
    }
    speed = (trainer.position - before) / seconds
    return Row("TGN learning as it comes", speed, "events/s", given, TARGET)


def _record(steps: Iterator[StepRecord]) -> None:
    """Make of each step what a run writes of it."""
    deque((step.to_json() for step in steps), maxlen=0)
