"""Training speed of TGN and TGAT against other installed libraries, in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks import peers
from benchmarks.own import Task, named_task, own_tgat, own_tgn
from benchmarks.race import contenders, race, rows_beside, speed_rows
from benchmarks.train_device import device_rows
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, restored_threads
from tgflow.bench.train import TURN, set_threads
from tgflow.nn._native import has_bfloat16

TGN_TIMES_FASTER = {"torch_geometric": 3.0, "tglite": 6.0}
TGN_TIMES_FASTER_BF16 = {"torch_geometric": 4.0}
TGAT_TIMES_FASTER = {"tgm-lib": 33.0, "tglite": 4.0}
"""Targets of tgflow's speed relative to a peer, at the peer's visibility."""


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
