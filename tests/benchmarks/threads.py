"""The gain of a second thread for a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.own import Own, Task, own_tgat, own_tgn, task_of
from benchmarks.race import Laps
from tgflow import _core
from tgflow.cli.benchmarks.row import Params, Row
from tgflow.cli.benchmarks.setup import Options, restored_threads
from tgflow.cli.benchmarks.train import TURN, training_events
from tgflow.run.machine import num_cores

EVENTS = 30_000
"""Number of the stream's first events that are used."""
OVER_ONE = 1.7
"""Target of two threads over one, on two cores."""
TRAINING = "threads, training"


def run(options: Options) -> list[Row]:
    """Train TGN and TGAT on one thread and on all, in turns."""
    name, events = training_events(options, EVENTS)
    task = task_of(events)
    params: Params = {"stream": name, "events": len(task.events)}
    rows: list[Row] = []
    for model, make in (("TGN", own_tgn), ("TGAT", own_tgat)):
        rows += training_rows(task, make, {**params, "model": model}, options)
    return rows


def training_rows(
    task: Task, make: Callable[[Task], Own], params: Params, options: Options
) -> Iterator[Row]:
    """Yield the speed on one thread and on one per core, turn by turn."""
    cores = num_cores()
    laps = {n: Laps(make(task), TURN, task.batch_size) for n in (1, cores)}
    with restored_threads():
        while len(laps[1].losses) < task.num_batches:
            for num, each in laps.items():
                torch.set_num_threads(num)
                _core.set_num_threads(num)
                each.run()
            options.say(f"{params['model']}: batch {len(laps[1].losses):,}")
    one = laps.pop(1).median
    yield Row(TRAINING, one, "events/s", {**params, "threads": 1})
    wanted = OVER_ONE if cores == 2 else None
    for each in laps.values():
        named = {**params, "threads": cores}
        yield Row(TRAINING, each.median, "events/s", named, baseline=one, target_ratio=wanted)
