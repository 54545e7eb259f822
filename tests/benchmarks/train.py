"""Training speed and held-out AP of TGN and TGAT against other installed libraries, in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks import peers
from benchmarks.graph import hop_rows, insert_rows
from benchmarks.own import Task, named_task, own_tgat, own_tgn, task_of
from benchmarks.race import OWN, contenders, race, rows_beside, speed_rows
from benchmarks.train_device import device_rows
from tgflow import _core
from tgflow.cli.benchmarks.row import Params, Row
from tgflow.cli.benchmarks.setup import Options, restored_threads
from tgflow.cli.benchmarks.train import THREADS, TURN, set_threads, training_events
from tgflow.nn._native import has_bfloat16

TGN_TIMES_FASTER = {"torch_geometric": 3.0, "tglite": 6.0}
TGN_TIMES_FASTER_BF16 = {"torch_geometric": 4.0}
TGAT_TIMES_FASTER = {"tgm-lib": 33.0, "tglite": 4.0}
"""Targets of tgflow's speed relative to a peer, at the peer's visibility."""
HELD_OUT_EVENTS, SEEDS = 40_000, (0, 1)
SETTINGS: Mapping[str, dict[str, Any]] = {
    "as in its example": {},
    "fixed frequencies": {"peer_time": "fixed"},
    "fixed frequencies, ages of events": {"peer_time": "age"},
    "learning rate 1e-3": {"lr": 1e-3},
}
"""Changes of the task by which `held_out` explains the AP of peers; peers' examples have 1e-4."""


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
            rows += tgn_rows(task, params, options, peers.TGN[:1], TGN_TIMES_FASTER_BF16)
        return rows


def tgn_rows(
    task: Task,
    params: Params,
    options: Options,
    others: Sequence[peers.Peer] = peers.TGN,
    targets: Mapping[str, float] = TGN_TIMES_FASTER,
) -> list[Row]:
    """TGN against peers, batch by batch on the same events: speed and held-out AP."""
    laps, absent = contenders(own_tgn, task, others, TURN)
    race(laps, task.num_batches, options)
    for each in laps:
        each.evaluate()
    rows = speed_rows("TGN training", laps, absent, params)
    rows += rows_beside("TGN training", laps, params, targets)
    return rows + [
        Row("TGN held-out AP", each.held_out_ap, "", params | each.params) for each in laps
    ]


def tgat_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """TGAT over the whole stream; a peer trains one batch a turn, as it is far slower."""
    laps, absent = contenders(own_tgat, task, peers.TGAT, turn=1)
    race(laps, task.num_batches, options)
    rows = speed_rows("TGAT training", laps, absent, params)
    return rows + rows_beside("TGAT training", laps, params, TGAT_TIMES_FASTER)
