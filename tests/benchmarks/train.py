"""Training speed and held-out AP of models against other installed libraries, and by threads."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from benchmarks import peers
from benchmarks.graph import hop_rows, insert_rows
from benchmarks.options import (
    THREADS,
    TURN,
    Options,
    restored_threads,
    set_threads,
    training_events,
)
from benchmarks.own import Own, Task, model_of, named_task, own_tgat, own_tgn, task_of
from benchmarks.race import OWN, Laps, contenders, race, rows_beside, speed_rows
from benchmarks.results import Params, Row
from benchmarks.train_device import device_rows
from tgflow import DyGFormer, GraphMixer, TemporalModel, TPNet, _core
from tgflow.nn._native import has_bfloat16
from tgflow.run.machine import num_cores

TGN_TIMES_FASTER, TGN_TIMES_FASTER_BF16, TGAT_TIMES_FASTER = 3.0, 4.0, 33.0
"""Targets of tgflow's speed relative to a peer, at the peer's visibility."""
HELD_OUT_EVENTS, SEEDS = 40_000, (0, 1)
SETTINGS: Mapping[str, dict[str, Any]] = {
    "as in its example": {},
    "fixed frequencies": {"peer_time": "fixed"},
    "fixed frequencies, ages of events": {"peer_time": "age"},
    "learning rate 1e-3": {"lr": 1e-3},
}
"""Changes of the task by which `held_out` explains the AP of peers; peers' examples have 1e-4."""
THREADS_EVENTS, OVER_ONE = 30_000, 1.7
"""First events that `threads` uses; target of two threads over one, on two cores."""
OTHERS: Mapping[str, tuple[Callable[[Task], TemporalModel], peers.Peer, float, int, int]] = {
    "GraphMixer": (
        lambda task: model_of(task, GraphMixer, embedding_dim=task.dim, neighbors=task.neighbors),
        peers.GRAPHMIXER, 5.0, TURN, 20,
    ),
    "TPNet": (
        lambda task: model_of(task, TPNet, embedding_dim=task.dim, neighbors=task.neighbors),
        peers.TPNET, 3.0, 3, 20,
    ),
    "DyGFormer": (  # a sequence has the node and its neighbors
        lambda task: model_of(task, DyGFormer, embedding_dim=task.dim, length=1 + task.neighbors),
        peers.DYGFORMER, 3.0, 3, 31,
    ),
}  # fmt: skip
"""Other models: tgflow's, a peer, the target of their ratio, batches of a turn of tgflow's (a peer
trains one), and neighbors without features."""


def libraries(options: Options) -> list[Row]:
    """Measure the tables of tgflow against other libraries: training, sampling and inserting."""
    rows = run(options)
    with restored_threads():
        name, events = options.wikipedia()
        rows += hop_rows(name, events, options)
        _core.set_num_threads(1)
        return [*rows, *insert_rows(name, events, options)]


def held_out(options: Options) -> list[Row]:
    """Measure the held-out AP of TGN after one epoch under `SETTINGS`, means over `SEEDS`."""
    name, events = training_events(options, HELD_OUT_EVENTS)
    rows = []
    with restored_threads():
        set_threads()
        for settings, changes in SETTINGS.items():
            aps: dict[tuple[str, str], list[float]] = {}
            for seed in SEEDS:
                task = replace(task_of(events), seed=seed, **changes)
                laps, _ = contenders(own_tgn, task, peers.TGN, TURN)
                laps = [x for x in laps if not (x.library == OWN and "peer_time" in changes)]
                race(laps, task.num_batches, options)
                for each in laps:
                    each.evaluate()
                    aps.setdefault((each.library, each.visibility), []).append(each.held_out_ap)
            params: Params = {"stream": name, "events": len(events), "threads": THREADS}
            params |= {"seeds": len(SEEDS), "settings": settings}
            rows += [
                Row("TGN held-out AP", fmean(ap), "", params | {"library": x, "visibility": seen})
                for (x, seen), ap in aps.items()
            ]
    return rows


def run(options: Options) -> list[Row]:
    """Train the models once over the stream, tgflow and its peers turn by turn.

    tgflow trains at each visibility. The figures are medians of turns; `quick` trains on the
    stream's first 10,000 events only.
    """
    task, params = named_task(options)
    params = params | {"precision": task.precision}
    with restored_threads():
        set_threads()
        rows: list[Row] = []
        device = options.devices[-1]
        if device != "cpu":
            rows += device_rows(task, params, device, options)
        if options.only_device:
            return rows
        rows += tgn_rows(task, params, options) + tgat_rows(task, params, options)
        if has_bfloat16():
            task, params = replace(task, precision="bf16"), params | {"precision": "bf16"}
            rows += tgn_rows(task, params, options, TGN_TIMES_FASTER_BF16)
        return rows


def tgn_rows(
    task: Task, params: Params, options: Options, target: float = TGN_TIMES_FASTER
) -> list[Row]:
    """TGN against its peer, batch by batch on the same events: speed and held-out AP."""
    laps, absent = contenders(own_tgn, task, peers.TGN, TURN)
    race(laps, task.num_batches, options)
    for each in laps:
        each.evaluate()
    rows = speed_rows("TGN training", laps, absent, params)
    rows += rows_beside("TGN training", laps, params, target)
    return rows + [
        Row("TGN held-out AP", each.held_out_ap, "", params | each.params) for each in laps
    ]


def tgat_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """TGAT over the whole stream; a peer trains one batch a turn, as it is far slower."""
    laps, absent = contenders(own_tgat, task, peers.TGAT, turn=1)
    race(laps, task.num_batches, options)
    rows = speed_rows("TGAT training", laps, absent, params)
    return rows + rows_beside("TGAT training", laps, params, TGAT_TIMES_FASTER)


def threads(options: Options) -> list[Row]:
    """Train TGN and TGAT on one thread and on all, in turns."""
    name, events = training_events(options, THREADS_EVENTS)
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
    yield Row("threads, training", one, "events/s", {**params, "threads": 1})
    wanted = OVER_ONE if cores == 2 else None
    for each in laps.values():
        named = {**params, "threads": cores}
        yield Row(
            "threads, training", each.median, "events/s", named, baseline=one, target_ratio=wanted
        )


def models(options: Options) -> list[Row]:
    """Train each of `OTHERS` once over the stream, tgflow and its peer turn by turn, as `run`."""
    task, params = named_task(options)
    with restored_threads():
        set_threads()
        return model_rows(task, params, options)


def model_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """Return the rows of all models; only GraphMixer trains on events with features, too."""
    rows = rows_beside_peer(task, params, options, "GraphMixer")
    for name, (*_, neighbors) in OTHERS.items():
        plain = replace(task, events=replace(task.events, x=None), neighbors=neighbors)
        named = params | {"features": 0, "neighbors": neighbors}
        rows += rows_beside_peer(plain, named, options, name)
    return rows


def rows_beside_peer(task: Task, params: Params, options: Options, model: str) -> list[Row]:
    """Return the speeds of a tgflow model and of its peer, which trains one batch a turn."""
    make, peer, times_faster, own_turn, _ = OTHERS[model]
    laps, absent = contenders(lambda task: Own(task, make(task)), task, peer, 1, own_turn)
    race(laps, task.num_batches, options)
    rows = speed_rows(f"{model} training", laps, absent, params)
    return rows + rows_beside(f"{model} training", laps, params, times_faster)
