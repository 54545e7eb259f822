"""Training speed on a GPU: by batch size, with and without lookahead, and during appends."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice

from benchmarks import peers
from benchmarks.options import TURN, Options, seconds_of
from benchmarks.own import Own, Task, own_tgat, own_tgn
from benchmarks.race import OWN, contenders, race, rows_beside, speed_rows
from benchmarks.results import Params, Row
from tgflow import EventBatch, TemporalGraph
from tgflow.cuda.device import Device

BATCHES = (200, 600, 4000)
WARM_UP, LEAST_SECONDS = 10, 3.0
"""Batches of a pass that are not timed, because they compile and capture; least timed seconds."""
BESIDE_BATCH = 600
PEER_EVENTS, PEER_TURN = 40_000, 5
"""Events trained beside peers, and batches of a turn of TGAT's, which are far slower."""
APPENDED, APPENDS_A_SECOND = 10_000, 100
"""Events per append during training, and appends per second: a million events a second."""


def device_rows(
    task: Task, params: Params, device: str | Device, options: Options
) -> Iterator[Row]:
    """Measure TGN and TGAT with everything on a GPU; `benchmarks.gpu_goals` has the goals."""
    for model, make in (("TGN", own_tgn), ("TGAT", own_tgat)):
        for batch_size in BATCHES:
            options.say(f"train: {model}, batches of {batch_size:,} on a device")
            sized = replace(task, batch_size=batch_size)
            given = params | {"batch": batch_size, "device": "cuda"}
            speed = device_speed(make(sized, 1, device), options)
            yield Row(f"{model} training on the device", speed, "events/s", given)
            alone = device_speed(make(sized, 0, device), options, waits=True)
            yield Row("epoch with look-ahead", speed / alone, "x", given | {"model": model})
    yield beside_row(task, params, device, options)
    yield from peer_rows(task, params, device, options)


def peer_rows(task: Task, params: Params, device: str | Device, options: Options) -> Iterator[Row]:
    """Measure the models and their peers in turns, all with everything on the GPU."""
    name = device if isinstance(device, str) else "cpu"
    task = replace(task, train_stop=min(task.train_stop, PEER_EVENTS), device=name)
    for model, make, peer in (("TGN", own_tgn, peers.TGN), ("TGAT", own_tgat, peers.TGAT)):
        turn = TURN if model == "TGN" else PEER_TURN
        laps, absent = contenders(partial(make, device=device), task, peer, turn)
        for each in [each for each in laps if each.library != OWN]:
            try:
                each.run()
            except RuntimeError as error:  # a library may not run on this device
                absent.append(each.params | {"skipped": str(error).partition("\n")[0]})
                laps.remove(each)
        race(laps, task.num_batches, options)
        given = params | {"batch": task.batch_size, "device": "cuda"}
        title = f"{model} training on the device"
        yield from speed_rows(f"{title}, beside peers", laps, absent, given)
        yield from rows_beside(title, laps, given)


def device_speed(own: Own, options: Options, waits: bool = False) -> float:
    """Return events per second of passes over the full batches, without their first batches.

    Args:
        own: A model at the start of its task.
        options: `quick` makes one pass.
        waits: Whether to synchronize after each step, before the next batch is prepared.
    """
    kind, done, spent = own.learner.device.type, 0, 0.0
    stop = own.task.train_stop // own.task.batch_size
    warm_up = min(WARM_UP, stop // 2)
    while not done or (spent < LEAST_SECONDS and not options.quick):
        own.rewind()
        steps = own.steps(stop)
        deque(islice(steps, warm_up), maxlen=0)
        timed = (loss.item() if waits else loss for loss in steps)
        spent += seconds_of(partial(deque, timed, 0), kind)
        done += stop - warm_up
    return done * own.task.batch_size / spent


def beside_row(task: Task, params: Params, device: str | Device, options: Options) -> Row:
    """Measure by how much appends to the graph that TGN reads slow its training."""
    options.say("train: TGN beside appends")
    own = own_tgn(replace(task, batch_size=BESIDE_BATCH), 1, device)
    alone = device_speed(own, options)
    graph = own.plan.graph
    before, begin = graph.num_events, time.perf_counter()
    with appending(graph, task.events[:APPENDED]):
        beside = device_speed(own, options)
        reached = (graph.num_events - before) / (time.perf_counter() - begin)
    given = params | {"batch": BESIDE_BATCH, "device": "cuda", "appended/s": round(reached)}
    return Row("training beside appends", 100 * (alone / beside - 1), "% slower", given)


@contextmanager
def appending(graph: TemporalGraph, events: EventBatch) -> Iterator[None]:
    """Append `events` to a graph repeatedly, `APPENDS_A_SECOND` times a second, in a thread."""
    ended, errors = threading.Event(), []

    def append() -> None:
        begin, t, number = time.perf_counter(), graph.log.t_last or 0, 0
        try:
            while not ended.wait(max(0.0, begin + number / APPENDS_A_SECOND - time.perf_counter())):
                number += 1
                later = t + number * int(events.t[-1] - events.t[0] + 1) - events.t[0]
                graph.append(replace(events, t=events.t + later))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=append, name="tgflow-appends", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]
