"""How fast TGN and TGAT train."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tgflow import _core
from tgflow.bench.live_device import live_row
from tgflow.bench.options import Options
from tgflow.bench.own import Own, own_tgat, own_tgn
from tgflow.bench.row import Params, Row
from tgflow.bench.task import Laps, Task
from tgflow.bench.train_device import device_rows
from tgflow.bench.turns import restored_threads
from tgflow.events import EventBatch

X_DIM = 172
"""Width of the published features, which are not redistributed with the stream."""
TRAIN_SHARE = 0.85
TURN = 25
"""Batches that a contender trains when it is its turn."""
CURVE_POINTS = 5
QUICK_EVENTS = 10_000
THREADS = 2

TGAT_EVENTS_PER_SECOND = 6000.0
TORCH_SHARE = 0.85


def run(options: Options) -> list[Row]:
    """Train TGN and TGAT once over the stream.

    Speeds are medians of turns; `quick` trains on the stream's first 10,000 events only.
    """
    task, params = named_task(options)
    with restored_threads():
        set_threads()
        if options.devices[-1] != "cpu":
            rows = on_device(task, params, options.devices[-1], options)
            return rows if options.only_device else rows + cpu_rows(task, params, options)
        return cpu_rows(task, params, options)


def on_device(task: Task, params: Params, device: str, options: Options) -> list[Row]:
    """Train on a GPU: over a stream that is there, and as it comes."""
    rows = [live_row(task, params, device, options)]
    return [*rows, *device_rows(task, params, device, options)]


def cpu_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """Train on the CPU."""
    tgn = laps_of(own_tgn(task), options)
    tgn.evaluate()
    tgat = laps_of(own_tgat(task), options)
    return [
        Row("TGN training", tgn.median, "events/s", params),
        share_row(task, params),
        *quality_rows(tgn, params),
        Row("TGAT training", tgat.median, "events/s", params, TGAT_EVENTS_PER_SECOND),
    ]


def set_threads() -> None:
    """Let torch and the core use as many threads as the figures are of."""
    torch.set_num_threads(THREADS)
    _core.set_num_threads(THREADS)


def named_task(options: Options) -> tuple[Task, Params]:
    """Return the task on the standard stream, and what its rows say of it."""
    name, events = options.wikipedia()
    task = task_of(events[: options.events or (QUICK_EVENTS if options.quick else None)])
    return task, {"stream": name, "events": len(task.events), "threads": THREADS}


def task_of(events: EventBatch) -> Task:
    """Return the task on a stream, with standard normal edge features."""
    src = torch.unique(events.src, return_inverse=True)[1]
    dst = torch.unique(events.dst, return_inverse=True)[1] + int(src.max()) + 1
    x = torch.randn(len(events), X_DIM, generator=torch.Generator().manual_seed(0))
    return Task(EventBatch(src, dst, events.t, x), int(TRAIN_SHARE * len(events)))


def laps_of(own: Own, options: Options) -> Laps:
    """Train a model on all of its task."""
    laps = Laps(own, TURN, own.task.batch_size)
    while len(laps.losses) < own.task.num_batches:
        laps.run()
        options.say(f"train: batch {len(laps.losses):,}, {laps.turns[-1]:,.0f} events/s")
    return laps


def share_row(task: Task, params: Params) -> Row:
    """Return the share of a step in torch's forward, backward and optimizer, on one thread of ours.

    With nothing prepared ahead, so that all that a step takes is counted.
    """
    own = own_tgn(task, num_threads=0)
    own.train(TURN)
    own.seconds = own.torch_seconds = 0.0
    own.train(2 * TURN)
    share = own.torch_seconds / max(own.seconds, 1e-9)
    return Row("TGN training step, share in torch", share, "", params, TORCH_SHARE)


def quality_rows(laps: Laps, params: Params) -> Iterator[Row]:
    """Mean losses by fifths of the batches, and the average precision of what was held out."""
    for point, loss in enumerate(laps.curve(CURVE_POINTS), 1):
        yield Row("TGN loss", loss, "nats", params | {"part": f"{point}/{CURVE_POINTS}"})
    yield Row("TGN held-out AP", laps.held_out_ap, "", params)
