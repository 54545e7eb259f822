"""Training on a GPU with and without look-ahead, and beside appends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options
from tgflow.bench.train import DEVICE_BATCHES, Task, device_speed, own_tgat, own_tgn
from tgflow.cuda.device import Device
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph

AHEAD_TARGET = 2.0
"""How many times faster an epoch with look-ahead should be."""
BESIDE_BATCH = 600
APPENDED, APPENDS_A_SECOND = 10_000, 100
"""Events of an append beside training, and appends a second: a million events a second."""
BESIDE_TARGET = 5.0
"""Percent by which appends may slow training."""


def ahead_rows(task: Task, params: Params, device: str | Device, options: Options) -> Iterator[Row]:
    """Measure an epoch with look-ahead beside one without, for both models and each batch size."""
    for model, make in (("TGN", own_tgn), ("TGAT", own_tgat)):
        for batch_size in DEVICE_BATCHES:
            sized = replace(task, batch_size=batch_size)
            ahead = device_speed(make(sized, 1, device), options)
            alone = device_speed(make(sized, 0, device), options, waits=True)
            given = params | {"batch": batch_size, "device": "cuda", "model": model}
            yield Row("epoch with look-ahead", ahead / alone, "x", given, AHEAD_TARGET)


def beside_row(task: Task, params: Params, device: str | Device, options: Options) -> Row:
    """Measure by how much appends to the graph that TGN reads slow its training."""
    options.say("train: TGN beside appends")
    own = own_tgn(replace(task, batch_size=BESIDE_BATCH), 1, device)
    alone = device_speed(own, options)
    with appending(own.plan.graph, task.events[:APPENDED]) as appended:
        begin = time.perf_counter()
        beside = device_speed(own, options)
        reached = appended.num_events / (time.perf_counter() - begin)
    given = params | {"batch": BESIDE_BATCH, "device": "cuda", "appended/s": round(reached)}
    slower = 100 * (alone / beside - 1)
    return Row("training beside appends", slower, "% slower", given, BESIDE_TARGET)


@dataclass(slots=True)
class Appended:
    """Progress of the appending thread."""

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
