"""Training speed of TGN and TGAT against other installed libraries, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks import peers
from benchmarks.own import Task, named_task, own_tgat, own_tgn
from benchmarks.race import contenders, race, speed_rows, times_rows
from benchmarks.train_device import device_rows
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, restored_threads
from tgflow.bench.train import TURN, set_threads
from tgflow.nn._native import has_bfloat16

TGN_TIMES_FASTER, TGN_TIMES_FASTER_BF16, TGAT_TARGET = 3.0, 4.0, 6000.0


def run(options: Options) -> list[Row]:
    """Train the models once over the stream, tgflow and its peers turn by turn.

    The figures are medians of turns; `quick` trains on the stream's first 10,000 events only.
    """
    task, params = named_task(options)
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
    target: float = TGN_TIMES_FASTER,
) -> list[Row]:
    """TGN against peers, batch by batch on the same events: speed and held-out AP."""
    laps, absent = contenders(own_tgn(task), others, TURN)
    race(laps, task.num_batches, options)
    for each in laps.values():
        each.evaluate()
    rows = speed_rows("TGN training", laps, absent, params)
    rows += times_rows("TGN training, times the faster peer", laps, params, target)
    return rows + [
        Row("TGN held-out AP", each.held_out_ap, "", params | {"library": library})
        for library, each in laps.items()
    ]


def tgat_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """TGAT over the whole stream; a peer trains one batch a turn, as it is far slower."""
    laps, absent = contenders(own_tgat(task), peers.TGAT, turn=1)
    race(laps, task.num_batches, options)
    return speed_rows("TGAT training", laps, absent, params, TGAT_TARGET)
