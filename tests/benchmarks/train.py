"""How fast TGN and TGAT train, beside the other libraries that are installed, in the same run."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import peers
from benchmarks.peers import Peer
from benchmarks.race import Laps, race
from benchmarks.results import skipped
from benchmarks.train_device import ahead_rows, beside_row
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, restored_threads
from tgflow.bench.train import (
    TGAT_TARGET,
    TURN,
    Own,
    Task,
    device_rows,
    live_row,
    named_task,
    own_tgat,
    own_tgn,
    quality_rows,
    set_threads,
    share_row,
)

OWN = "tgflow"
TGN_TIMES_FASTER = 3.0


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
            rows.append(live_row(task, params, device, options))
            rows += device_rows(task, params, device, options)
            rows += ahead_rows(task, params, device, options)
            rows.append(beside_row(task, params, device, options))
        if options.only_device:
            return rows
        return rows + tgn_rows(task, params, options) + tgat_rows(task, params, options)


def tgn_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """TGN against all peers, batch by batch on the same events: speed, losses, held-out AP."""
    laps, absent = contenders(own_tgn(task), peers.TGN, TURN)
    race(laps, task.num_batches, options)
    for each in laps.values():
        each.evaluate()
    rows = speed_rows("TGN training", laps, absent, params)
    others = [each.median for name, each in laps.items() if name != OWN]
    if others:
        times = laps[OWN].median / max(others)
        rows.append(
            Row("TGN training, times the faster peer", times, "x", params, TGN_TIMES_FASTER)
        )
    rows.append(share_row(task, params))
    for library, each in laps.items():
        rows += quality_rows(each.losses, each.held_out_ap, params | {"library": library})
    return rows


def tgat_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """TGAT over the whole stream; a peer trains one batch a turn, as it is far slower."""
    laps, absent = contenders(own_tgat(task), peers.TGAT, turn=1)
    race(laps, task.num_batches, options)
    return speed_rows("TGAT training", laps, absent, params, TGAT_TARGET)


def contenders(
    own: Own, others: Sequence[Peer], turn: int, own_turn: int = TURN
) -> tuple[dict[str, Laps], dict[str, str]]:
    """Return who takes part, with `turn` batches a turn for the peers, and why others do not."""
    laps, absent = {OWN: Laps(own, own_turn, own.task.batch_size)}, {}
    for peer in others:
        loaded = peers.load(peer, own.task)
        if isinstance(loaded, str):
            absent[peer.library] = loaded
        else:
            laps[peer.library] = Laps(loaded, turn, own.task.batch_size)
    return laps, absent


def speed_rows(
    name: str,
    laps: dict[str, Laps],
    absent: dict[str, str],
    params: Params,
    target: float | None = None,
) -> list[Row]:
    """Give each library a row, those that did not take part as well."""
    rows = []
    for library, each in laps.items():
        named = params | {"library": library}
        rows.append(Row(name, each.median, "events/s", named, target if library == OWN else None))
    return rows + [
        skipped(name, "events/s", {"library": library}, reason)
        for library, reason in absent.items()
    ]
