"""How fast TGN and TGAT train where graph, features and model are all on a GPU."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from torch import Tensor

from tgflow.bench.options import Options
from tgflow.bench.own import Own, own_tgat, own_tgn
from tgflow.bench.row import Params, Row
from tgflow.bench.task import Task
from tgflow.bench.turns import seconds_of
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph

BATCHES = (200, 600, 4000)
TARGETS = {"TGN": (0.5e6, 1.2e6, 3e6), "TGAT": (0.3e6, 0.6e6, 1.2e6)}
"""Events a second to reach on one H200, for each size of batches."""
AHEAD_TARGET = 2.0
"""How many times faster an epoch is to be that is prepared ahead."""
WARM_UP = 10
"""Batches of a pass before it is timed: kernels are compiled and captured in them."""
SECONDS = 3.0
"""That a model may train for."""
BESIDE_BATCH = 600
APPENDED, APPENDS_A_SECOND = 10_000, 100
"""Events of an append beside training, and how many there are: a million events a second."""
BESIDE_TARGET = 5.0
"""Percent that appends may slow training."""

Make = Callable[[Task, int, str | Device], Own]
MODELS: dict[str, Make] = {"TGN": own_tgn, "TGAT": own_tgat}


def device_rows(
    task: Task, params: Params, device: str | Device, options: Options
) -> Iterator[Row]:
    """Events a second of both models for each size of batches, and what look-ahead is worth."""
    for model, make in MODELS.items():
        for batch_size, target in zip(BATCHES, TARGETS[model], strict=True):
            options.say(f"train: {model}, batches of {batch_size:,} on a device")
            sized = replace(task, batch_size=batch_size)
            ahead = speed(make(sized, 1, device), options)
            alone = speed(make(sized, 0, device), options, waits=True)
            given = params | {"batch": batch_size, "device": "cuda"}
            yield Row(f"{model} training on the device", ahead, "events/s", given, target)
            given = given | {"model": model}
            yield Row("epoch with look-ahead", ahead / alone, "x", given, AHEAD_TARGET)
    yield beside_row(task, params, device, options)


def speed(own: Own, options: Options, *, waits: bool = False) -> float:
    """Return events a second of passes over the batches of full size, but for their beginnings.

    Args:
        own: A model at the start of its task.
        options: `quick` makes one pass.
        waits: Whether the host waits for each step before it prepares the next batch.
    """
    kind, done, spent = own.learner.device.type, 0, 0.0
    stop = own.task.train_stop // own.task.batch_size
    warm_up = min(WARM_UP, stop // 2)
    while not done or (spent < SECONDS and not options.quick):
        own.rewind()
        steps = own.steps(stop)
        deque(islice(steps, warm_up), maxlen=0)
        spent += seconds_of(partial(_take, steps, waits=waits), kind)
        done += stop - warm_up
    return done * own.task.batch_size / spent


def _take(steps: Iterator[Tensor], *, waits: bool) -> None:
    for loss in steps:
        if waits:
            loss.item()


def beside_row(task: Task, params: Params, device: str | Device, options: Options) -> Row:
    """Return by how much appends to the graph that it reads slow the training of TGN."""
    options.say("train: TGN beside appends")
    own = own_tgn(replace(task, batch_size=BESIDE_BATCH), 1, device)
    alone = speed(own, options)
    with appending(own.plan.graph, task.events[:APPENDED]) as appended:
        begin = time.perf_counter()
        beside = speed(own, options)
        reached = appended.num_events / (time.perf_counter() - begin)
    given = params | {"batch": BESIDE_BATCH, "device": "cuda", "appended/s": round(reached)}
    slower = 100 * (alone / beside - 1)
    return Row("training beside appends", slower, "% slower", given, BESIDE_TARGET)


@dataclass(slots=True)
class Appended:
    """How far another thread has come."""

    num_events: int = 0
    error: BaseException | None = None


@contextmanager
def appending(graph: TemporalGraph, events: EventBatch) -> Iterator[Appended]:
    """Append `events` to a graph over and over, `APPENDS_A_SECOND` times, from another thread."""
    state, ended = Appended(), threading.Event()

    def append() -> None:
        begin, t = time.perf_counter(), graph.log.t_last or 0
        for number in range(1, 1 << 30):
            later = t + number * int(events.t[-1] - events.t[0] + 1) - events.t[0]
            graph.append(replace(events, t=events.t + later))
            state.num_events += len(events)
            if ended.wait(max(0.0, begin + number / APPENDS_A_SECOND - time.perf_counter())):
                return

    def run() -> None:
        try:
            append()
        except BaseException as error:
            state.error = error

    thread = threading.Thread(target=run, name="tgflow-appends", daemon=True)
    thread.start()
    try:
        yield state
    finally:
        ended.set()
        thread.join()
    if state.error is not None:
        raise state.error
